-- Lists tasks, newest first.
--
-- ARGV   index (`idx` or `idx:<state>`), sequence number before which to start or `+inf`, most tasks
-- Result a list of {task, sequence, record}

local before = ARGV[2] == '+inf' and '+inf' or '(' .. ARGV[2]
local found = redis.call('ZREVRANGEBYSCORE', P .. ARGV[1], before, '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local listed = {}
for i = 1, #found, 2 do
  listed[#listed + 1] = {found[i], found[i + 1], redis.call('HGET', P .. 't:' .. found[i], 'r') or ''}
end
return listed
