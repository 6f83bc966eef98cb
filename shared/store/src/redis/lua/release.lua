-- Gives jobs back, uncharged.
--
-- ARGV   for each: task, phase, fence, owner
-- Result for each: 1 given back, 0 not its own any more, 3 its task is not here

local names, results = {}, {}
for i = 1, #ARGV, 4 do
  names[#names + 1] = ARGV[i] .. '/' .. ARGV[i + 1]
end
load('jobs', names)
for n, name in ipairs(names) do
  local i = 4 * n - 3
  local stored = get('jobs', name)
  local fence, place, owner, deliveries, rest = read_job(stored or '')
  local result = 0
  if place == 'l' and fence == ARGV[i + 2] and owner == ARGV[i + 3] then
    -- What was reported is no longer there.
    if call('ZREM', P .. 'leases', name .. '/' .. fence) == 1 then
      local _, queue = read_rest(rest)
      add('leased', queue, -1)
      make_ready(name, fence + 1, deliveries - 1, rest)
      result = 1
    end
  elseif not stored and not get('heads', ARGV[i]) then
    result = 3
  end
  results[n] = result
end
flush()
return results
