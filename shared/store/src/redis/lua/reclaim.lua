-- Puts jobs whose leases ran out back into their queues, or gives them up.
--
-- ARGV   most deliveries, most jobs
-- Result {redelivered, given up, ms until the next lease runs out or -1, the queues that got jobs}

local most_deliveries, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local redelivered, given_up, queues, is_woken = 0, 0, {}, {}
local over, names = call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', 0, most), {}
for i, lease in ipairs(over) do
  names[i] = string.match(lease, '^(.*)/%d+$')
end
load('jobs', names)
for i, name in ipairs(names) do
  local stored = get('jobs', name)
  local fence, place, _, deliveries, rest = read_job(stored or '')
  score('leases', over[i], false)
  if place == 'l' and name .. '/' .. fence == over[i] then
    local attempt, queue = read_rest(rest)
    fence = fence + 1
    add('leased', queue, -1)
    count('leases_expired_total\31' .. queue, 1)
    if tonumber(deliveries) > most_deliveries then
      call('XADD', P .. 'outcomes', '*', name .. '/' .. fence .. '/' .. attempt, '!' .. deliveries)
      keep_job(name, fence, 'r', '-', deliveries, rest)
      given_up = given_up + 1
      woken.outcomes = true
    else
      make_ready(name, fence, deliveries, rest)
      redelivered = redelivered + 1
      if not is_woken[queue] then
        is_woken[queue] = true
        queues[#queues + 1] = queue
      end
    end
  elseif stored and not place then
    set_job_aside(name, 'where the job is cannot be read')
  end
end
flush()
return {redelivered, given_up, next_in(P .. 'leases') or -1, queues}
