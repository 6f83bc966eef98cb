-- Commits transitions, each whole or not at all; also adds new tasks.
--
-- ARGV   generation of partitions that the caller knows, `1` to add tasks, token of this call, kinds (MessagePack, below),
--        then for each: kind, task, version, guard fence, receipt, `time lines notices` (JSON), record
--        A kind is what many transitions of a call have in common:
--        guard phase, state, is final, phases to look at, jobs {phase, put, delay ms, rest, queue, priority, lane},
--        deltas {key, by}
-- Result for each: a applied, s stale, c conflict, e there already, m not here; or `generation` where tasks are to be
--        added and the caller does not know the newest partitions

local create, token = ARGV[2] == '1', ARGV[3]
local kinds = cmsgpack.unpack(ARGV[4])
local sequence
local log, lines = {}, {}

local function next_sequence()
  sequence = sequence or tonumber(redis.call('GET', P .. 'seq') or 0)
  -- Microseconds, so that partitions can be merged by it; still exact as a double.
  sequence = math.max(sequence + 1, time[1] * 1000000 + time[2])
  return string.format('%.0f', sequence)
end

local function index(task, before, state, number)
  if before ~= state then
    if before then
      score('idx:' .. before, task, false)
    end
    score('idx:' .. state, task, number)
  end
  if state == 'escalated' then
    score('escalated', task, now)
  elseif before == 'escalated' then
    score('escalated', task, false)
  end
end

-- A task in a final state keeps no jobs.
local function forget_jobs(task, hash, phases, stored)
  local fields = {}
  for i, phase in ipairs(phases) do
    if stored[i + 4] then
      local _, place, who, _, rest = read_job(stored[i + 4])
      if place then
        take_out(task, phase, place, who, rest)
      end
      fields[#fields + 1] = 'j:' .. phase
    end
  end
  if fields[1] then
    redis.call('HDEL', hash, unpack(fields))
  end
end

-- Carries out what happens to the jobs, and adds what is to be stored of them to `values`.
local function change_jobs(task, kind, stored, values)
  local at_hand, changed = {}, {}
  for i, phase in ipairs(kind[4]) do
    if stored[i + 4] then
      local fence, place, who, _, rest = read_job(stored[i + 4])
      at_hand[phase] = {fence, place or 'n', who, rest, 0}
    end
  end
  local function touch(phase)
    local job = at_hand[phase]
    if not job then
      job = {0, 'n', '-', '', 0}
      at_hand[phase] = job
    end
    take_out(task, phase, job[2], job[3], job[4])
    job[2], job[3], job[5] = 'n', '-', 0
    if not changed[phase] then
      changed[phase] = true
      job[1] = (job[1] or 0) + 1
    end
    return job
  end
  if kind[1] ~= '' then
    touch(kind[1])
  end
  for _, change in ipairs(kind[5]) do
    local phase, put, delay, rest, queue, priority, lane = unpack(change)
    if put or at_hand[phase] then
      local job = touch(phase)
      if put then
        job[4] = rest
        if delay > 0 then
          job[2] = 'd'
          score('delayed', task .. '/' .. phase, string.format('%.0f', now + delay))
        else
          job[2], job[3] = 'q', enqueue(task, phase, queue, priority, lane)
        end
      end
    end
  end
  for phase in pairs(changed) do
    local job = at_hand[phase]
    values[#values + 1] = 'j:' .. phase
    values[#values + 1] = job[1] .. ' ' .. job[2] .. ' ' .. job[3] .. ' 0 ' .. job[4]
  end
end

local function commit(kind, mark, task, version, guard_fence, receipt, told, record)
  local hash = P .. 't:' .. task
  local stored = redis.call('HMGET', hash, unpack(kind.fields))
  local before, number = stored[2], stored[4]
  if stored[3] == mark then
    -- The same call again: the answer to its first try was lost on the way.
    return 'a'
  end
  if create then
    if before then
      return 'e'
    end
    number = next_sequence()
  elseif kind[1] ~= '' and not (stored[kind.guard] and string.match(stored[kind.guard], '^%d+') == guard_fence) then
    drop_stale(receipt)
    return 's'
  elseif not before then
    return 'm'
  elseif stored[1] ~= version then
    return 'c'
  end
  local state = kind[2]
  local values = {'r', record, 'v', tostring(version + 1), 's', state, 'c', mark}
  if create then
    values[9], values[10] = 'n', number
  end
  index(task, before, state, number)
  if kind[3] then
    forget_jobs(task, hash, kind[4], stored)
  else
    change_jobs(task, kind, stored, values)
  end
  redis.call('HSET', hash, unpack(values))
  kind.applied = kind.applied + 1
  if told ~= '' then
    local at, said, notices = string.match(told, '^(%d+) (%d+) (.*)$')
    log[#log + 1], log[#log + 2] = task .. ' ' .. at, notices
    lines[#log] = said
  end
  if receipt ~= '' then
    acknowledge(receipt)
  end
  return 'a'
end

-- The event log keeps about ten thousand lines.
local function write_log()
  local from = 1
  while from <= #log do
    local to = math.min(#log, from + 999)
    local said = 0
    for i = from + 1, to, 2 do
      said = said + lines[i]
    end
    redis.call('XADD', P .. 'events', '*', 'n', said, unpack(log, from, to))
    local kept = redis.call('INCRBY', P .. 'events:lines', said)
    while kept > 10500 do
      local oldest = redis.call('XRANGE', P .. 'events', '-', '+', 'COUNT', 1)[1]
      if not oldest or kept - oldest[2][2] < 10000 then
        break
      end
      redis.call('XDEL', P .. 'events', oldest[1])
      kept = redis.call('DECRBY', P .. 'events:lines', oldest[2][2])
    end
    from = to + 1
  end
end

if create and tonumber(redis.call('HGET', P .. 'meta', 'generation') or 1) > tonumber(ARGV[1]) then
  return 'generation'
end
for _, kind in ipairs(kinds) do
  kind.applied = 0
  kind.fields = {'v', 's', 'c', 'n'}
  for i, phase in ipairs(kind[4]) do
    kind.fields[i + 4] = 'j:' .. phase
    if phase == kind[1] then
      kind.guard = i + 4
    end
  end
end
local results = {}
for i = 5, #ARGV, 7 do
  local task, version, fence, receipt, told, record = unpack(ARGV, i + 1, i + 6)
  results[#results + 1] = commit(kinds[tonumber(ARGV[i])], token .. i, task, version, fence, receipt, told, record)
end
for _, kind in ipairs(kinds) do
  for _, delta in ipairs(kind[6]) do
    count(delta[1], delta[2] * kind.applied)
  end
end
if sequence then
  redis.call('SET', P .. 'seq', string.format('%.0f', sequence))
end
write_log()
flush()
return results
