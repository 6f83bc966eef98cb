-- Gives jobs back, uncharged.
--
-- ARGV   for each: task, phase, fence, owner
-- Result how many were given back

local released = 0
for i = 1, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local job = get_job(task, phase)
  if holds(job, tonumber(ARGV[i + 2]), ARGV[i + 3]) then
    local key, entry = stream(job), job[ENTRY]
    job[FENCE], job[DELIVERIES] = job[FENCE] + 1, job[DELIVERIES] - 1
    make_ready(task, phase, job)
    put_job(task, phase, job)
    redis.call('ZREM', P .. 'leases:' .. job[QUEUE], task .. '/' .. phase)
    acknowledge_job(key, entry)
    released = released + 1
  end
end
return released
