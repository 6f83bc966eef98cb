-- Puts delayed jobs that are due into their queues.
--
-- ARGV   most jobs
-- Result {moved, ms until the next is due or -1, the queues that got jobs}

local moved, queues, is_woken = 0, {}, {}
local due = call('ZRANGEBYSCORE', P .. 'delayed', '-inf', now, 'LIMIT', 0, ARGV[1])
load('jobs', due)
for _, name in ipairs(due) do
  local fence, place, _, deliveries, rest = read_job(get('jobs', name) or '')
  if place == 'd' then
    local queue = make_ready(name, fence, deliveries, rest)
    moved = moved + 1
    if not is_woken[queue] then
      is_woken[queue] = true
      queues[#queues + 1] = queue
    end
  elseif not place and get('jobs', name) then
    set_job_aside(name, 'where the job is cannot be read')
  end
  score('delayed', name, false)
end
flush()
return {moved, next_in(P .. 'delayed') or -1, queues}
