-- Hands in outcomes.
--
-- ARGV   for each: task, phase, fence, owner, payload
-- Result for each: 1 accepted, 0 stale. The rightful owner is told 1 again when it asks again.

local results = {}
for i = 1, #ARGV, 5 do
  local task, phase, fence, owner = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local job = get_job(task, phase)
  local accepted = 0
  if holds(job, fence, owner) then
    redis.call('XADD', P .. 'outcomes', '*', 't', task, 'p', phase, 'f', fence, 'a', job[ATTEMPT], 'k', 'outcome', 'o', ARGV[i + 4])
    take_out(task, phase, job)
    job[PLACE], job[OWNER] = 'r', owner
    put_job(task, phase, job)
    accepted = 1
  elseif job and job[PLACE] == 'r' and job[FENCE] == fence and job[OWNER] == owner then
    accepted = 1
  end
  results[#results + 1] = accepted
end
wake('outcomes')
return results
