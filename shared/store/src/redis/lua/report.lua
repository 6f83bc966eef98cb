-- Ends leases and begins outcomes.
--
-- ARGV   for each: lease (<task>/<phase>/<fence>), queue, attempt, payload
-- Result for each: 1 done, 0 the lease is not there
--
-- Whose the lease is was looked at before: a lease has its fence in its name, so nobody can end another's.

local results = {}
for i = 1, #ARGV, 4 do
  local lease = ARGV[i]
  local ended = call('ZREM', P .. 'leases', lease)
  if ended == 1 then
    call('XADD', P .. 'outcomes', '*', lease .. '/' .. ARGV[i + 2], ARGV[i + 3])
    add('leased', ARGV[i + 1], -1)
    woken.outcomes = true
  end
  results[#results + 1] = ended
end
flush()
return results
