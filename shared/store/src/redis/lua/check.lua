-- Makes the partition where it is missing, and counts a beat.
--
-- ARGV   the epoch to set where there is none, the partitions to set where there are none, the schema of the keys
-- Result {epoch, beat, schema that the keys have}

call('HSETNX', P .. 'meta', 'schema', ARGV[3])
local schema = call('HGET', P .. 'meta', 'schema')
if schema ~= ARGV[3] then
  -- Another program's keys are left as they are.
  return {'', 0, schema}
end
call('HSETNX', P .. 'meta', 'epoch', ARGV[1])
call('HSETNX', P .. 'meta', 'partitions', ARGV[2])
local beat = call('HINCRBY', P .. 'meta', 'beat', 1)
local made = redis.pcall('XGROUP', 'CREATE', P .. 'outcomes', 'c', '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then
  return made
end
return {call('HGET', P .. 'meta', 'epoch'), beat, schema}
