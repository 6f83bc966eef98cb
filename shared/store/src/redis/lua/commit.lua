-- Commits transitions, each whole or not at all; also adds new tasks.
--
-- ARGV   generation of partitions that the caller knows, `1` to add tasks, token of this call, kinds (MessagePack, below),
--        how many lines the event log gets, those lines (JSON: a list of {task, time, notices}, one for each commit),
--        then for each: kind, task, version, guard fence, receipt, record, description of a new task
--        A kind is what many transitions of a call have in common:
--        guard phase, state, is final, phases to look at, jobs {phase, put, delay ms, rest, queue, priority, lane},
--        deltas {key, by}, phases joined by US
-- Result for each: a applied, s stale, c conflict, e there already, m not here; or `generation` where tasks are to be
--        added and the caller does not know the newest partitions

local create, token = ARGV[2] == '1', ARGV[3]
local kinds = cmsgpack.unpack(ARGV[4])
local sequence

local function next_sequence()
  sequence = sequence or tonumber(redis.call('GET', P .. 'seq') or 0)
  -- Microseconds, so that partitions can be merged by it; still exact as a double.
  sequence = math.max(sequence + 1, time[1] * 1000000 + time[2])
  return string.format('%d', sequence)
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
local function forget_jobs(task, phases, reported)
  for _, phase in ipairs(phases) do
    local name = task .. '/' .. phase
    local stored = get('jobs', name)
    if stored then
      local fence, place, who, _, rest = read_job(stored)
      if place and phase ~= reported then
        take_out(name, fence, place, who, rest)
      end
      set('jobs', name, false)
    end
  end
end

-- Takes a phase's job out of wherever it is and raises its fence, once a commit. Gives the fence and what else is kept.
local function touch(name, raised, is_reported)
  local fence, place, who, _, rest = read_job(get('jobs', name) or '')
  if place and not is_reported then
    take_out(name, fence, place, who, rest)
  end
  fence = (fence or 0) + (raised[name] and 0 or 1)
  raised[name] = true
  return fence, rest or ''
end

local function change_jobs(task, kind)
  local raised = {}
  if kind[1] ~= '' and not kind.is_guard_changed then
    local name = task .. '/' .. kind[1]
    local fence, rest = touch(name, raised, true)
    put_job(name, fence, 'n', '-', 0, rest)
  end
  for _, change in ipairs(kind[5]) do
    local phase, put, delay, rest, queue, priority, lane = unpack(change)
    local name = task .. '/' .. phase
    if put or get('jobs', name) then
      -- The job of the outcome that is decided on was reported: it is nowhere.
      local fence, before = touch(name, raised, phase == kind[1] and not raised[name])
      if not put then
        put_job(name, fence, 'n', '-', 0, before)
      elseif delay > 0 then
        put_job(name, fence, 'd', '-', 0, rest)
        score('delayed', name, string.format('%d', now + delay))
      else
        put_job(name, fence, 'q', enqueue(task, phase, queue, priority, lane), 0, rest)
      end
    end
  end
end

local function commit(kind, mark, task, version, guard_fence, receipt, record, text)
  local head = get('heads', task)
  local found, before, number, last
  if head then
    found, before, number, last = string.match(head, '^(%d+) (%l+) (%d+) (%S+)')
  end
  if last == mark then
    -- The same call again: the answer to its first try was lost on the way.
    return 'a'
  end
  if create then
    if head then
      return 'e'
    end
    number = next_sequence()
  elseif kind[1] ~= '' and string.match(get('jobs', task .. '/' .. kind[1]) or '', '^%d+') ~= guard_fence then
    drop_stale(receipt)
    return 's'
  elseif not head then
    return 'm'
  elseif found ~= version then
    return 'c'
  end
  set('records', task, record)
  if create then
    set('texts', task, text)
  end
  set('heads', task, (version + 1) .. ' ' .. kind[2] .. ' ' .. number .. ' ' .. mark .. ' ' .. kind[7])
  index(task, before, kind[2], number)
  if kind[3] then
    forget_jobs(task, kind[4], kind[1])
  else
    change_jobs(task, kind)
  end
  kind.applied = kind.applied + 1
  if receipt ~= '' then
    acknowledged[#acknowledged + 1] = receipt
  end
  return 'a'
end

-- The event log keeps about ten thousand lines.
local function write_log(results)
  local said, told = tonumber(ARGV[5]), ARGV[6]
  for _, result in ipairs(results) do
    if result ~= 'a' then
      -- Only what happened is told.
      local happened = {}
      said = 0
      for i, commit in ipairs(cjson.decode(told)) do
        if results[i] == 'a' then
          happened[#happened + 1] = commit
          said = said + #commit[3]
        end
      end
      told = cjson.encode(happened)
      break
    end
  end
  if said == 0 then
    return
  end
  redis.call('XADD', P .. 'events', '*', said, told)
  local kept = redis.call('INCRBY', P .. 'events:lines', said)
  while kept > 10500 do
    local oldest = redis.call('XRANGE', P .. 'events', '-', '+', 'COUNT', 1)[1]
    if not oldest or kept - oldest[2][1] < 10000 then
      break
    end
    redis.call('XDEL', P .. 'events', oldest[1])
    kept = redis.call('DECRBY', P .. 'events:lines', oldest[2][1])
  end
end

if create and tonumber(redis.call('HGET', P .. 'meta', 'generation') or 1) > tonumber(ARGV[1]) then
  return 'generation'
end
for _, kind in ipairs(kinds) do
  kind.applied = 0
  for _, change in ipairs(kind[5]) do
    kind.is_guard_changed = kind.is_guard_changed or change[1] == kind[1]
  end
end
local tasks, names = {}, {}
for i = 7, #ARGV, 7 do
  local task = ARGV[i + 1]
  tasks[#tasks + 1] = task
  for _, phase in ipairs(kinds[tonumber(ARGV[i])][4]) do
    names[#names + 1] = task .. '/' .. phase
  end
end
load('heads', tasks)
if create then
  -- Of a new task there are no jobs.
  for _, name in ipairs(names) do
    known.jobs[name] = false
  end
else
  load('jobs', names)
end
local results = {}
for i = 7, #ARGV, 7 do
  local task, version, fence, receipt, record, text = unpack(ARGV, i + 1, i + 6)
  results[#results + 1] = commit(kinds[tonumber(ARGV[i])], token .. i, task, version, fence, receipt, record, text)
end
for _, kind in ipairs(kinds) do
  for _, delta in ipairs(kind[6]) do
    count(delta[1], delta[2] * kind.applied)
  end
end
if sequence then
  redis.call('SET', P .. 'seq', string.format('%d', sequence))
end
write_log(results)
flush()
return results
