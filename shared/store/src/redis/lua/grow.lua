-- Tells a partition that there are more of them.
--
-- ARGV   what the namespace kept of its partitions, what it is to keep, how many generations that are
-- Result 1; 0 where it keeps something else, since somebody else added partitions meanwhile

local kept = redis.call('HGET', P .. 'meta', 'partitions')
if kept ~= ARGV[1] and kept ~= ARGV[2] then
  return 0
end
redis.call('HSET', P .. 'meta', 'partitions', ARGV[2], 'generation', ARGV[3])
return 1
