-- Puts delayed jobs that are due into their queues.
--
-- ARGV   most jobs
-- Result {moved, ms until the next is due or -1, the queues that got jobs}

local moved, queues, is_woken = 0, {}, {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local task, phase = split(member)
  local job = get_job(task, phase)
  if job and job[PLACE] == 'd' then
    make_ready(task, phase, job)
    put_job(task, phase, job)
    moved = moved + 1
    if not is_woken[job[QUEUE]] then
      is_woken[job[QUEUE]] = true
      queues[#queues + 1] = job[QUEUE]
    end
  end
  score('delayed', member, false)
end
flush()
return {moved, next_in(P .. 'delayed') or -1, queues}
