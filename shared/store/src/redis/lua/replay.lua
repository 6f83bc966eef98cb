-- Puts a quarantined job or outcome back.
--
-- ARGV   its id
-- Result {1, or 0 where there is none; the queue that got a job or `outcomes`}

local kept = call('HGET', P .. 'quarantine', ARGV[1])
if not kept then
  return {0, ''}
end
local got = 'outcomes'
local aside = cjson.decode(kept)
if aside.what == 'job' then
  local name = aside.task .. '/' .. aside.phase
  local fence, place, _, deliveries, rest = read_job(get('jobs', name) or '')
  if place == 'x' then
    got = make_ready(name, fence, deliveries, rest)
  elseif not fence and get('jobs', name) then
    -- There is nothing to put back that anybody could read.
    return {0, ''}
  end
else
  local fields = {}
  for i, hex in ipairs(aside.fields) do
    fields[i] = string.gsub(hex, '..', function(digits) return string.char(tonumber(digits, 16)) end)
  end
  call('XADD', P .. 'outcomes', '*', unpack(fields))
end
call('HDEL', P .. 'quarantine', ARGV[1])
woken[got] = true
flush()
return {1, got}
