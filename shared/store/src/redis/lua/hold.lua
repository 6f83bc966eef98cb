-- Changes the pause of a provider, where it still is what the caller has read.
--
-- ARGV   target; the pause that was read, as it was, the empty string for none; the new one, the empty string to read
-- Result {now in ms, 1 where it was changed, the pause that is there}

local target, read, new = ARGV[1], ARGV[2], ARGV[3]
local there = call('HGET', P .. 'pauses', target) or ''
if new == '' or there ~= read then
  return {now, 0, there}
end
call('HSET', P .. 'pauses', target, new)
call('HDEL', P .. 'probes', target)
return {now, 1, new}
