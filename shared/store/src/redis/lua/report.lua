-- Hands in outcomes.
--
-- ARGV   for each: task, phase, fence, owner, payload
-- Result for each: 1 accepted, 0 stale, 3 its task is not here. The rightful owner is told 1 again when it asks again.

local results = {}
for i = 1, #ARGV, 5 do
  local task, phase, fence, owner = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local job, is_damaged = get_job(task, phase)
  local result = 0
  if holds(job, fence, owner) then
    redis.call('XADD', P .. 'outcomes', '*', 't', task, 'p', phase, 'f', fence, 'a', job[ATTEMPT], 'k', 'outcome', 'o', ARGV[i + 4])
    take_out(task, phase, job)
    job[PLACE], job[OWNER] = 'r', owner
    put_job(task, phase, job)
    result = 1
  elseif job and job[PLACE] == 'r' and job[FENCE] == fence and job[OWNER] == owner then
    result = 1
  elseif not job and not is_damaged and not is_here(task) then
    result = 3
  end
  results[#results + 1] = result
end
flush()
return results
