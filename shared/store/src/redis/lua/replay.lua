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
  local fence, place, _, deliveries, rest = read_job(get_job(aside.task, aside.phase) or '')
  if place == 'x' then
    woken = make_ready(aside.task, aside.phase, fence, deliveries, rest)
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
