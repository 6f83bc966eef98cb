-- Tells a partition that there are more of them.
--
-- ARGV   the step, what the namespace kept of its partitions, what it is to keep, how many generations that are
--        begin: in the first partition, before any other is told: only one growth at a time, to its end
--        tell: in each partition
-- Result empty; where it keeps or is on its way to something else: that

local step, old, new = ARGV[1], ARGV[2], ARGV[3]
local kept = call('HGET', P .. 'meta', 'partitions')
if kept ~= old and kept ~= new then
  return kept or '?'
end
if step == 'begin' then
  local growing = call('HGET', P .. 'meta', 'growing')
  if growing and growing ~= new then
    return growing
  end
  if kept == old then
    call('HSET', P .. 'meta', 'growing', new)
  end
  return ''
end
call('HSET', P .. 'meta', 'partitions', new, 'generation', ARGV[4])
call('HDEL', P .. 'meta', 'growing')
return ''
