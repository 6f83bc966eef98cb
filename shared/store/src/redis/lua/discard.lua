-- Drops outcomes that change nothing.
--
-- ARGV   their ids
-- Result how many

for _, id in ipairs(ARGV) do
  acknowledge_outcome(id)
  count('stale_outcomes_total', 1)
end
return #ARGV
