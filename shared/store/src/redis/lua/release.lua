-- Gives jobs back, uncharged.
--
-- ARGV   for each: task, phase, fence, owner
-- Result for each: 1 given back, 0 not its own any more, 3 its task is not here

local results = {}
for i = 1, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local stored = get_job(task, phase)
  local result = 0
  if stored then
    local fence, place, owner, deliveries, rest = read_job(stored)
    if place == 'l' and fence == ARGV[i + 2] and owner == ARGV[i + 3] then
      local _, queue = read_rest(rest)
      if redis.call('ZREM', P .. 'leases:' .. queue, task .. '/' .. phase) == 1 then
        make_ready(task, phase, fence + 1, deliveries - 1, rest)
        result = 1
      end
    end
  elseif not is_here(task) then
    result = 3
  end
  results[#results + 1] = result
end
flush()
return results
