-- Drops outcomes that change nothing.
--
-- ARGV   their ids
-- Result how many

for _, id in ipairs(ARGV) do
  drop_stale(id)
end
flush()
return #ARGV
