-- Puts jobs whose leases ran out back into their queues, or gives them up.
--
-- ARGV   most deliveries, most jobs
-- Result {redelivered, poisoned, ms until the next lease runs out or -1}

local most_deliveries, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local redelivered, poisoned, soonest = 0, 0, -1
for _, queue in ipairs({'code', 'review', 'land'}) do
  local leases = P .. 'leases:' .. queue
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, most)) do
    local task, phase = split(member)
    local job, is_damaged = get_job(task, phase)
    if job and job[PLACE] == 'l' then
      local key, entry = stream(job), job[ENTRY]
      job[FENCE] = job[FENCE] + 1
      if job[DELIVERIES] > most_deliveries then
        redis.call('XADD', P .. 'outcomes', '*', 't', task, 'p', phase, 'f', job[FENCE], 'a', job[ATTEMPT], 'k', 'poisoned', 'o', job[DELIVERIES])
        job[PLACE], job[OWNER] = 'r', ''
        wake('outcomes')
        poisoned = poisoned + 1
      else
        make_ready(task, phase, job)
        redelivered = redelivered + 1
      end
      put_job(task, phase, job)
      count('leases_expired_total\31' .. queue, 1)
      redis.call('ZREM', leases, member)
      acknowledge_job(key, entry)
    else
      if is_damaged then
        local aside = {task = task, phase = phase, what = 'job', reason = 'where the job is cannot be read'}
        redis.call('HSET', P .. 'quarantine', 'job:' .. member, cjson.encode(aside))
        count('quarantined_total', 1)
      end
      redis.call('ZREM', leases, member)
    end
  end
  local next = next_in(leases)
  if next and (soonest < 0 or next < soonest) then
    soonest = next
  end
end
return {redelivered, poisoned, soonest}
