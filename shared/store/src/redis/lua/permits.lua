-- Permits: how many jobs run at once under a name, in the whole namespace. One runs out with the lease it belongs to, so
-- none is leaked by a worker that is killed.
--
-- ARGV   the operation, then for
--        room: nothing                       Result {name, held}... of all names that are held
--        take: lease ms, then for each lease: its name, how many names, then name and the most of it
--                                            Result for each lease: 1 all taken, 0 none, since one of the names had no room
--        keep: ms, then members              Result how many were still there
--        free: members                       Result how many were still there
--        A member is <name> RS <lease>.

local function held(name, by)
  if call('HINCRBY', P .. 'held', name, by) <= 0 then
    call('HDEL', P .. 'held', name)
  end
end

local function free(member)
  if call('ZREM', P .. 'permits', member) == 1 then
    held(string.match(member, '^(.-)\30'), -1)
    return 1
  end
  return 0
end

repeat
  local over = call('ZRANGEBYSCORE', P .. 'permits', '-inf', now, 'LIMIT', 0, 1000)
  for _, member in ipairs(over) do
    free(member)
  end
until #over < 1000

local operation = ARGV[1]
if operation == 'room' then
  return call('HGETALL', P .. 'held')
end

if operation == 'take' then
  local lease, results, i = tonumber(ARGV[2]), {}, 3
  while i <= #ARGV do
    local name, names = ARGV[i], tonumber(ARGV[i + 1])
    local has_room = true
    for k = i + 2, i + 1 + 2 * names, 2 do
      -- What this very call took, when its answer was lost, takes no room from it.
      if tonumber(call('HGET', P .. 'held', ARGV[k]) or 0) >= tonumber(ARGV[k + 1])
        and not call('ZSCORE', P .. 'permits', ARGV[k] .. '\30' .. name) then
        has_room = false
      end
    end
    for k = i + 2, has_room and i + 1 + 2 * names or 0, 2 do
      if call('ZADD', P .. 'permits', now + lease, ARGV[k] .. '\30' .. name) == 1 then
        held(ARGV[k], 1)
      end
    end
    results[#results + 1] = has_room and 1 or 0
    i = i + 2 + 2 * names
  end
  return results
end

local found = 0
if operation == 'keep' then
  for i = 3, #ARGV do
    -- One that ran out is held again: its lease was, too.
    if call('ZADD', P .. 'permits', now + tonumber(ARGV[2]), ARGV[i]) == 1 then
      held(string.match(ARGV[i], '^(.-)\30'), 1)
    else
      found = found + 1
    end
  end
else
  for i = 2, #ARGV do
    found = found + free(ARGV[i])
  end
end
return found
