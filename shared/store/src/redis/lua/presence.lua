-- Says that a process lives, or that it leaves, and forgets those that said nothing for long.
--
-- ARGV   id, payload or the empty string for leaving, ms after which a silent process is forgotten
-- Result how many were forgotten

local id, payload = ARGV[1], ARGV[2]
local seen = P .. 'workers:seen'
if payload ~= '' then
  redis.call('HSET', P .. 'workers', id, payload)
  redis.call('ZADD', seen, now, id)
else
  redis.call('ZADD', seen, 0, id)
end

-- A consumer with pending entries stays: deleting it would lose them.
local function forget_consumer(key, group, consumer)
  if #redis.call('XPENDING', key, group, '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', key, group, consumer)
    return true
  end
  return false
end

local forgotten = 0
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', now - tonumber(ARGV[3]), 'LIMIT', 0, 20)) do
  local is_gone = forget_consumer(P .. 'outcomes', 'c', silent)
  for _, queue in ipairs({'code', 'review', 'land'}) do
    for _, priority in ipairs(PRIORITIES) do
      is_gone = forget_consumer(P .. 'q:' .. queue .. ':' .. priority, 'w', silent) and is_gone
    end
  end
  redis.call('HDEL', P .. 'workers', silent)
  if is_gone then
    redis.call('ZREM', seen, silent)
  end
  forgotten = forgotten + 1
end
return forgotten
