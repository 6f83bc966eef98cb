-- Puts jobs whose leases ran out back into their queues, or gives them up.
--
-- ARGV   most deliveries, most jobs
-- Result {redelivered, poisoned, ms until the next lease runs out or -1, the queues that got jobs}

local most_deliveries, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local redelivered, poisoned, soonest, queues = 0, 0, -1, {}
for _, queue in ipairs(QUEUES) do
  local leases, is_woken = 'leases:' .. queue, false
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. leases, '-inf', now, 'LIMIT', 0, most)) do
    local task, phase = split(member)
    local job, is_damaged = get_job(task, phase)
    if job and job[PLACE] == 'l' then
      job[FENCE] = job[FENCE] + 1
      if job[DELIVERIES] > most_deliveries then
        redis.call('XADD', P .. 'outcomes', '*', 't', task, 'p', phase, 'f', job[FENCE], 'a', job[ATTEMPT], 'k', 'poisoned', 'o', job[DELIVERIES])
        job[PLACE], job[OWNER] = 'r', ''
        poisoned = poisoned + 1
      else
        make_ready(task, phase, job)
        redelivered = redelivered + 1
        is_woken = true
      end
      put_job(task, phase, job)
      count('leases_expired_total\31' .. queue, 1)
    elseif is_damaged then
      set_job_aside(task, phase, 'where the job is cannot be read')
    end
    score(leases, member, false)
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
return {redelivered, poisoned, soonest, queues}
