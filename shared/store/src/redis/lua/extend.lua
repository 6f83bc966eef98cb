-- Extends leases.
--
-- ARGV   lease in ms, then for each: task, phase, fence, owner
-- Result for each: 1 held, 0 lost, 2 cancelled, 3 its task is not here

local till = string.format('%.0f', now + tonumber(ARGV[1]))
local states = {}
for i = 2, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local stored = redis.call('HMGET', P .. 't:' .. task, 's', 'j:' .. phase)
  local state = stored[1] and 0 or 3
  if stored[1] == 'cancelled' then
    state = 2
  elseif stored[2] then
    local fence, place, owner, _, rest = read_job(stored[2])
    if place == 'l' and fence == ARGV[i + 2] and owner == ARGV[i + 3] then
      local _, queue = read_rest(rest)
      local leases, member = 'leases:' .. queue, task .. '/' .. phase
      -- One that was reported is no longer there.
      if redis.call('ZSCORE', P .. leases, member) then
        score(leases, member, till)
        state = 1
      end
    end
  end
  states[#states + 1] = state
end
flush()
return states
