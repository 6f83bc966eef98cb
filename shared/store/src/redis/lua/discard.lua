-- Drops outcomes that change nothing.
--
-- ARGV   their ids
-- Result how many

for _, id in ipairs(ARGV) do
  if acknowledge_outcome(id) then
    count('stale_outcomes_total', 1)
  end
end
return #ARGV
