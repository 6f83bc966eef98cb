-- Hands in outcomes.
--
-- ARGV   for each: task, phase, fence, owner, payload
-- Result for each: 1 accepted, 0 stale, 3 its task is not here. The rightful owner is told 1 again when it asks again.

local results = {}
for i = 1, #ARGV, 5 do
  local task, phase, fence, owner = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local stored = get_job(task, phase)
  local result = 0
  if stored then
    local held, holder, attempt, queue = string.match(stored, '^(%d+) l (%S+) %d+ (%d+) (%l+)')
    if held == fence and holder == owner then
      result = 1
      if redis.call('ZREM', P .. 'leases:' .. queue, task .. '/' .. phase) == 1 then
        local name = task .. '/' .. phase .. '/' .. fence .. '/' .. attempt
        redis.call('XADD', P .. 'outcomes', '*', name, ARGV[i + 4])
      end
    end
  elseif not is_here(task) then
    result = 3
  end
  results[#results + 1] = result
end
return results
