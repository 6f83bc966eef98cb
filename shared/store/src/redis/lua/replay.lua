-- Puts a quarantined job or outcome back.
--
-- ARGV   its id
-- Result {1, or 0 where there is none; the queue that got a job or `outcomes`}

local kept = redis.call('HGET', P .. 'quarantine', ARGV[1])
if not kept then
  return {0, ''}
end
local woken = 'outcomes'
local aside = cjson.decode(kept)
if aside.what == 'job' then
  local job = get_job(aside.task, aside.phase)
  if job and job[PLACE] == 'x' then
    make_ready(aside.task, aside.phase, job)
    put_job(aside.task, aside.phase, job)
    woken = job[QUEUE]
  end
else
  local fields = {}
  for i, hex in ipairs(aside.fields) do
    fields[i] = string.gsub(hex, '..', function(digits) return string.char(tonumber(digits, 16)) end)
  end
  redis.call('XADD', P .. 'outcomes', '*', unpack(fields))
end
redis.call('HDEL', P .. 'quarantine', ARGV[1])
flush()
return {1, woken}
