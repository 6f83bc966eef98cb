-- Extends leases.
--
-- ARGV   lease in ms, then for each: task, phase, fence, owner
-- Result for each: 1 held, 0 lost, 2 cancelled, 3 its task is not here

local till = string.format('%d', now + tonumber(ARGV[1]))
local tasks, names, states = {}, {}, {}
for i = 2, #ARGV, 4 do
  tasks[#tasks + 1] = ARGV[i]
  names[#names + 1] = ARGV[i] .. '/' .. ARGV[i + 1]
end
load('jobs', names)
for n, name in ipairs(names) do
  local i = 4 * n - 2
  local fence, owner = string.match(get('jobs', name) or '', '^(%d+) l (%S+)')
  local state = 0
  -- One that was reported is no longer there.
  local lease = name .. '/' .. ARGV[i + 2]
  if fence == ARGV[i + 2] and owner == ARGV[i + 3] and call('ZSCORE', P .. 'leases', lease) then
    score('leases', lease, till)
    state = 1
  else
    local before = string.match(get('heads', tasks[n]) or '', '^%d+ (%l+)')
    state = before == 'cancelled' and 2 or before and 0 or 3
  end
  states[n] = state
end
flush()
return states
