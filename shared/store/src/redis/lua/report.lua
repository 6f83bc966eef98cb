-- Hands in outcomes.
--
-- ARGV   for each: task, phase, fence, owner, payload
-- Result for each: 1 accepted, 0 stale, 3 its task is not here. The rightful owner is told 1 again when it asks again.

local names, results = {}, {}
for i = 1, #ARGV, 5 do
  names[#names + 1] = ARGV[i] .. '/' .. ARGV[i + 1]
end
load('jobs', names)
for n, name in ipairs(names) do
  local i = 5 * n - 4
  local stored = get('jobs', name)
  local fence, place, owner, deliveries, rest = read_job(stored or '')
  local result = 0
  if fence == ARGV[i + 2] and owner == ARGV[i + 3] and (place == 'l' or place == 'r') then
    result = 1
    if place == 'l' then
      local attempt, queue = read_rest(rest)
      redis.call('XADD', P .. 'outcomes', '*', name .. '/' .. fence .. '/' .. attempt, ARGV[i + 4])
      put_job(name, fence, 'r', owner, deliveries, rest)
      score('leases:' .. queue, name, false)
    end
  elseif not stored and not get('heads', ARGV[i]) then
    result = 3
  end
  results[n] = result
end
flush()
return results
