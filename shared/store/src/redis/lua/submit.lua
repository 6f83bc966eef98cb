-- Adds tasks that are not there yet, each whole or not at all. No task stands in a call twice.
--
-- ARGV   generation of partitions that the caller knows, token of this call, how many lines the event log gets, those lines
--        (`write_log`), kinds (MessagePack, below), then for each task: id, record, description
--        A kind is what many tasks of a call have in common:
--        their places in the call, state, tail (what its head ends with after the token), jobs {phase, put, delay ms, rest, queue, priority,
--        lane}, deltas {key, by}
-- Result for each: a added, r added by the first try of this call, e there already; or `generation` where the caller does not know the newest partitions

local token, kinds = ARGV[2], cmsgpack.unpack(ARGV[5])
if tonumber(call('HGET', P .. 'meta', 'generation') or 1) > tonumber(ARGV[1]) then
  return 'generation'
end
local tasks = {}
for i = 6, #ARGV, 3 do
  tasks[#tasks + 1] = ARGV[i]
end
local found = read_all('heads', tasks)
-- Microseconds, so that partitions can be merged by it; still exact as a double.
local sequence = math.max(tonumber(call('GET', P .. 'seq') or 0), time[1] * 1000000 + time[2])
local results, records, texts, heads, jobs = {}, {}, {}, {}, {}
local added = 0
for _, kind in ipairs(kinds) do
  local places, state, tail, changes, deltas = unpack(kind)
  local after_number = ' ' .. state .. ' 1 ' .. token .. ' ' .. tail
  local index, applied = {}, 0
  for _, place in ipairs(places) do
    local task, head = tasks[place], found[place]
    if head then
      -- With this token it is the same call again: the answer to its first try was lost on the way.
      results[place] = string.find(head, token, 1, true) and 'r' or 'e'
    else
      results[place] = 'a'
      applied, added = applied + 1, added + 2
      local number = string.format('%016d', sequence + place)
      records[added - 1], records[added] = task, ARGV[3 * place + 4]
      texts[added - 1], texts[added] = task, ARGV[3 * place + 5]
      heads[added - 1], heads[added] = task, number .. after_number
      index[2 * applied - 1], index[2 * applied] = number, task
      for _, change in ipairs(changes) do
        if change[2] then
          local name = task .. '/' .. change[1]
          jobs[#jobs + 1] = name
          jobs[#jobs + 1] = put_job(name, task, change, '1')
        end
      end
    end
  end
  call_with_all('ZADD', P .. 'idx:' .. state, index)
  if state == 'escalated' then
    for i = 1, #index, 2 do
      score('escalated', index[i + 1], now)
    end
  end
  for _, delta in ipairs(deltas) do
    count(delta[1], delta[2] * applied)
  end
end
call('SET', P .. 'seq', string.format('%d', sequence + #tasks))
call_with_all('HSET', P .. 'records', records)
call_with_all('HSET', P .. 'texts', texts)
call_with_all('HSET', P .. 'heads', heads)
call_with_all('HSET', P .. 'jobs', jobs)
write_log(results, ARGV[3], ARGV[4])
flush()
return results
