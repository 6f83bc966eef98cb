-- Counters, gauges, depths and ages.
--
-- ARGV   none
-- Result {counts, depth, {queue, leases, ms the oldest ready job has waited or -1}..., delayed, outcomes, quarantined,
--         ms the oldest escalation has waited or -1, workers}

-- The oldest of a queue is the first entry of one of its lanes; of very many lanes those are looked at that waited longest
-- for their turn.
local function oldest_ready(queue)
  local oldest
  for _, priority in ipairs(PRIORITIES) do
    for _, lane in ipairs(call('ZRANGE', P .. 'ring:' .. queue .. ':' .. priority, 0, 99)) do
      local first = call('XRANGE', P .. 'q:' .. queue .. ':' .. priority .. ':' .. lane, '-', '+', 'COUNT', 1)[1]
      local since = first and tonumber(string.match(first[1], '^(%d+)'))
      if since then
        oldest = math.min(oldest or since, since)
      end
    end
  end
  return oldest and math.max(0, now - oldest) or -1
end

local queues = {}
for _, queue in ipairs(QUEUES) do
  queues[#queues + 1] = {queue, tonumber(call('HGET', P .. 'leased', queue) or 0), oldest_ready(queue)}
end
local escalated = call('ZRANGE', P .. 'escalated', 0, 0, 'WITHSCORES')
return {
  call('HGETALL', P .. 'counts'),
  call('HGETALL', P .. 'depth'),
  queues,
  call('ZCARD', P .. 'delayed'),
  call('XLEN', P .. 'outcomes'),
  call('HLEN', P .. 'quarantine'),
  escalated[2] and math.max(0, now - escalated[2]) or -1,
  call('HVALS', P .. 'workers'),
}
