-- Gives jobs back, uncharged.
--
-- ARGV   for each: task, phase, fence, owner
-- Result for each: 1 given back, 0 not its own any more, 3 its task is not here

local results = {}
for i = 1, #ARGV, 4 do
  local task, phase = ARGV[i], ARGV[i + 1]
  local job, is_damaged = get_job(task, phase)
  local result = 0
  if holds(job, tonumber(ARGV[i + 2]), ARGV[i + 3]) then
    job[FENCE], job[DELIVERIES] = job[FENCE] + 1, job[DELIVERIES] - 1
    take_out(task, phase, job)
    make_ready(task, phase, job)
    put_job(task, phase, job)
    result = 1
  elseif not job and not is_damaged and not is_here(task) then
    result = 3
  end
  results[#results + 1] = result
end
flush()
return results
