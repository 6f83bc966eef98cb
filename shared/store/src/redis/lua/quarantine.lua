-- Sets jobs or outcomes aside that could not be decoded.
--
-- ARGV   for each: kind, id, task, phase, reason; kind: job (id is the fence), outcome (id is the entry)
-- Result how many

local set_aside = 0
for i = 1, #ARGV, 5 do
  local kind, id, task, phase, reason = unpack(ARGV, i, i + 4)
  if kind == 'job' then
    local name = task .. '/' .. phase
    local fence, place, who, deliveries, rest = read_job(get('jobs', name) or '')
    if place == 'l' and fence == id then
      take_out(name, fence, place, who, rest)
      -- The delivery does not count: nobody could work on it.
      keep_job(name, fence, 'x', '-', deliveries - 1, rest)
      set_job_aside(name, reason)
      set_aside = set_aside + 1
    end
  else
    local entry = call('XRANGE', P .. 'outcomes', id, id)[1]
    if entry then
      set_outcome_aside(entry, task, phase, reason)
      set_aside = set_aside + 1
    end
  end
end
flush()
return set_aside
