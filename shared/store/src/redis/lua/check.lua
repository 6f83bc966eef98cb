-- Makes the namespace where it is missing, and counts a beat.
--
-- ARGV   the epoch to set where there is none
-- Result {epoch, beat}

redis.call('HSETNX', P .. 'meta', 'epoch', ARGV[1])
redis.call('HSETNX', P .. 'meta', 'partitions', 1)
redis.call('HSETNX', P .. 'meta', 'schema', 1)
local beat = redis.call('HINCRBY', P .. 'meta', 'beat', 1)
local function make_group(key, group)
  local made = redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP') then
    return made
  end
end
local failed = make_group(P .. 'outcomes', 'c')
for _, queue in ipairs({'code', 'review', 'land'}) do
  for _, priority in ipairs(PRIORITIES) do
    failed = failed or make_group(P .. 'q:' .. queue .. ':' .. priority, 'w')
  end
end
return failed or {redis.call('HGET', P .. 'meta', 'epoch'), beat}
