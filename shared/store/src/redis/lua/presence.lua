-- Says that a process lives, or that it leaves.
--
-- ARGV   id, payload or the empty string for leaving, ms after which a silent process is to be forgotten
-- Result some of those that are to be forgotten

local id, payload = ARGV[1], ARGV[2]
local seen = P .. 'workers:seen'
if payload ~= '' then
  call('HSET', P .. 'workers', id, payload)
  call('ZADD', seen, now, id)
else
  call('HDEL', P .. 'workers', id)
  call('ZADD', seen, 0, id)
end
local silent = call('ZRANGEBYSCORE', seen, '-inf', now - tonumber(ARGV[3]), 'LIMIT', 0, 20)
if #silent > 0 then
  call('HDEL', P .. 'workers', unpack(silent))
end
return silent
