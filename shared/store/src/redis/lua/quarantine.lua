-- Sets jobs or outcomes aside that could not be decoded.
--
-- ARGV   for each: kind, id, task, phase, reason; kind: job (id is the fence), outcome (id is the entry)
-- Result how many

local set_aside = 0
for i = 1, #ARGV, 5 do
  local kind, id, task, phase, reason = unpack(ARGV, i, i + 4)
  local aside = {task = task, phase = phase, what = kind, reason = reason}
  local name
  if kind == 'job' then
    local job = get_job(task, phase)
    if job and job[PLACE] == 'l' and job[FENCE] == tonumber(id) then
      take_out(task, phase, job)
      -- The delivery does not count: nobody could work on it.
      job[PLACE], job[DELIVERIES] = 'x', job[DELIVERIES] - 1
      put_job(task, phase, job)
      name = 'job:' .. task .. '/' .. phase
    end
  else
    local entry = redis.call('XRANGE', P .. 'outcomes', id, id)[1]
    if entry then
      aside.fields = {}
      for f = 1, #entry[2] do
        -- JSON holds no bytes; the payload goes in as hexadecimal digits.
        aside.fields[f] = string.gsub(entry[2][f], '.', function(c) return string.format('%02x', string.byte(c)) end)
      end
      name = 'outcome:' .. id
      acknowledge_outcome(id)
    end
  end
  if name then
    redis.call('HSET', P .. 'quarantine', name, cjson.encode(aside))
    count('quarantined_total', 1)
    set_aside = set_aside + 1
  end
end
return set_aside
