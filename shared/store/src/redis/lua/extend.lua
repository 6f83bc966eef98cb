-- Extends leases.
--
-- ARGV   lease in ms, then for each: task, phase, fence, owner
-- Result for each: 1 held, 0 lost, 2 cancelled, 3 its task is not here

local lease = tonumber(ARGV[1])
local states = {}
for i = 2, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local stored = redis.call('HMGET', P .. 't:' .. task, 's', 'j:' .. phase)
  local job = read_job(stored[2])
  local state = stored[1] and 0 or 3
  if holds(job, tonumber(ARGV[i + 2]), ARGV[i + 3]) then
    score('leases:' .. job[QUEUE], task .. '/' .. phase, now + lease)
    state = 1
  elseif stored[1] == 'cancelled' then
    state = 2
  end
  states[#states + 1] = state
end
flush()
return states
