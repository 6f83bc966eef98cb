-- Makes the partition where it is missing, and counts a beat.
--
-- ARGV   the epoch to set where there is none, the partitions to set where there are none
-- Result {epoch, beat}

redis.call('HSETNX', P .. 'meta', 'epoch', ARGV[1])
redis.call('HSETNX', P .. 'meta', 'partitions', ARGV[2])
redis.call('HSETNX', P .. 'meta', 'schema', 2)
local beat = redis.call('HINCRBY', P .. 'meta', 'beat', 1)
local made = redis.pcall('XGROUP', 'CREATE', P .. 'outcomes', 'c', '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then
  return made
end
return {redis.call('HGET', P .. 'meta', 'epoch'), beat}
