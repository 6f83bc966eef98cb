-- Puts jobs whose leases ran out back into their queues, or gives them up.
--
-- ARGV   most deliveries, most jobs
-- Result {redelivered, given up, ms until the next lease runs out or -1, the queues that got jobs}

local most_deliveries, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local redelivered, given_up, soonest, queues = 0, 0, -1, {}
for _, queue in ipairs(QUEUES) do
  local leases, is_woken = 'leases:' .. queue, false
  local over = redis.call('ZRANGEBYSCORE', P .. leases, '-inf', now, 'LIMIT', 0, most)
  load('jobs', over)
  for _, name in ipairs(over) do
    local stored = get('jobs', name)
    local fence, place, _, deliveries, rest = read_job(stored or '')
    if place == 'l' then
      fence = fence + 1
      if tonumber(deliveries) > most_deliveries then
        local entry = name .. '/' .. fence .. '/' .. string.match(rest, '^%d+')
        redis.call('XADD', P .. 'outcomes', '*', entry, '!' .. deliveries)
        put_job(name, fence, 'r', '-', deliveries, rest)
        given_up = given_up + 1
      else
        make_ready(name, fence, deliveries, rest)
        redelivered = redelivered + 1
        is_woken = true
      end
      count('leases_expired_total\31' .. queue, 1)
    elseif stored and not place then
      set_job_aside(name, 'where the job is cannot be read')
    end
    score(leases, name, false)
  end
  if is_woken then
    queues[#queues + 1] = queue
  end
end
flush()
for _, queue in ipairs(QUEUES) do
  local next = next_in(P .. 'leases:' .. queue)
  if next and (soonest < 0 or next < soonest) then
    soonest = next
  end
end
return {redelivered, given_up, soonest, queues}
