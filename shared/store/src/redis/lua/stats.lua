-- Counters, gauges, depths and ages.
--
-- ARGV   none
-- Result {counts, depth, {queue, leases, ms the oldest ready job has waited or -1}..., delayed, outcomes, quarantined,
--         ms the oldest escalation has waited or -1, workers}

local function oldest_ready(queue)
  local oldest
  for _, priority in ipairs(PRIORITIES) do
    local key = P .. 'q:' .. queue .. ':' .. priority
    local group = redis.call('XINFO', 'GROUPS', key)[1]
    local last
    for i = 1, #(group or {}), 2 do
      if group[i] == 'last-delivered-id' then
        last = group[i + 1]
      end
    end
    -- Entries that no longer count may stand before the first that does; a hundred of them at once are unheard of.
    for _, entry in ipairs(redis.call('XRANGE', key, '(' .. (last or '0-0'), '+', 'COUNT', 100)) do
      local job = get_job(entry[2][2], entry[2][4])
      if job and job[PLACE] == 'q' and job[ENTRY] == entry[1] then
        oldest = math.min(oldest or job[SINCE], job[SINCE])
        break
      end
    end
  end
  return oldest and math.max(0, now - oldest) or -1
end

local queues = {}
for _, queue in ipairs({'code', 'review', 'land'}) do
  queues[#queues + 1] = {queue, redis.call('ZCARD', P .. 'leases:' .. queue), oldest_ready(queue)}
end
local escalated = redis.call('ZRANGE', P .. 'escalated', 0, 0, 'WITHSCORES')
return {
  redis.call('HGETALL', P .. 'counts'),
  redis.call('HGETALL', P .. 'depth'),
  queues,
  redis.call('ZCARD', P .. 'delayed'),
  redis.call('XLEN', P .. 'outcomes'),
  redis.call('HLEN', P .. 'quarantine'),
  escalated[2] and math.max(0, now - escalated[2]) or -1,
  redis.call('HVALS', P .. 'workers'),
}
