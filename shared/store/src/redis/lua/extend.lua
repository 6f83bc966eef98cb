-- Extends leases.
--
-- ARGV   lease in ms, then for each: task, phase, fence, owner
-- Result for each: 1 held, 0 lost, 2 cancelled

local lease = tonumber(ARGV[1])
local states = {}
for i = 2, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local job = get_job(task, phase)
  local state = 0
  if holds(job, tonumber(ARGV[i + 2]), ARGV[i + 3]) then
    redis.call('ZADD', P .. 'leases:' .. job[QUEUE], now + lease, task .. '/' .. phase)
    state = 1
  elseif redis.call('HGET', P .. 't:' .. task, 's') == 'cancelled' then
    state = 2
  end
  states[#states + 1] = state
end
return states
