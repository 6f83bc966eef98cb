-- Takes outcomes with the records that they are about.
--
-- ARGV   consumer, most outcomes, idle time in ms after which another's are taken over; 0 for not to look
-- Result a list of {id, {task, phase, fence, attempt, kind, payload}, record, version}

local consumer, most, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key = P .. 'outcomes'
local taken = {}

local function add(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  local is_task = string.match(fields.t or '', '^[a-z0-9][a-z0-9-]*$') and #fields.t <= 64
  if not (is_task and fields.p and tonumber(fields.f) and tonumber(fields.a) and fields.k and fields.o) then
    set_outcome_aside(entry, is_task and fields.t or 'unknown', fields.p or '', 'the entry is not one of an outcome')
    return
  end
  local task = redis.call('HMGET', P .. 't:' .. fields.t, 'r', 'v')
  taken[#taken + 1] = {
    entry[1], {fields.t, fields.p, fields.f, fields.a, fields.k, fields.o}, task[1] or '', tonumber(task[2] or 0)
  }
end

if idle > 0 then
  -- XAUTOCLAIM looks at no more than ten times COUNT, so its cursor is followed to the end.
  local cursor = '0-0'
  repeat
    local found = redis.call('XAUTOCLAIM', key, 'c', consumer, idle, cursor, 'COUNT', most)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do
      add(entry)
    end
  until cursor == '0-0' or #taken >= most
end
if #taken < most then
  local read = redis.call('XREADGROUP', 'GROUP', 'c', consumer, 'COUNT', most - #taken, 'STREAMS', key, '>')
  for _, entry in ipairs(read and read[1][2] or {}) do
    add(entry)
  end
end
flush()
return taken
