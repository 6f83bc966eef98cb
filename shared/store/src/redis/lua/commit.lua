-- Commits transitions, each whole or not at all; also adds new tasks.
--
-- ARGV   the generation of partitions that the caller knows, then for each: header (MessagePack, below), record
--        header: task, create, version, guard phase, guard fence, receipt, state, is final, priority,
--                jobs {phase, put, queue, attempt, delay ms, lane}, at, notices (JSON), deltas {key, by}, token
-- Result for each: a applied, s stale, c conflict, e there already, m not here; or `generation` where tasks are to be
--        added and the caller does not know the newest partitions

local sequence

local function next_sequence()
  sequence = sequence or tonumber(redis.call('GET', P .. 'seq') or 0)
  -- Microseconds, so that partitions can be merged by it; still exact as a double.
  sequence = math.max(sequence + 1, time[1] * 1000000 + time[2])
  return sequence
end

local function forget_jobs(task, hash)
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    if string.sub(field, 1, 2) == 'j:' then
      local phase = string.sub(field, 3)
      local job = get_job(task, phase)
      if job then
        take_out(task, phase, job)
      end
      redis.call('HDEL', hash, field)
    end
  end
end

-- Carries out what happens to the jobs of the phases in `at_hand`, and gives what is to be stored of them.
local function change_jobs(task, jobs, guard_phase, priority, at_hand, values)
  local raised, order = {}, {}
  local function touch(phase, job)
    take_out(task, phase, job)
    if not raised[phase] then
      job[FENCE] = job[FENCE] + 1
      raised[phase] = true
      order[#order + 1] = phase
    end
  end
  if guard_phase ~= '' then
    touch(guard_phase, at_hand[guard_phase])
  end
  for _, change in ipairs(jobs) do
    local phase, put, queue, attempt, delay, lane = unpack(change)
    local job = at_hand[phase] or {'n', queue, priority, attempt, 0, 0, '', '', now, lane}
    at_hand[phase] = job
    touch(phase, job)
    if put then
      job[QUEUE], job[PRIORITY], job[ATTEMPT], job[DELIVERIES], job[LANE] = queue, priority, attempt, 0, lane
      if delay > 0 then
        job[PLACE], job[SINCE] = 'd', now + delay
        score('delayed', task .. '/' .. phase, now + delay)
      else
        make_ready(task, phase, job)
      end
    end
  end
  for _, phase in ipairs(order) do
    values[#values + 1] = 'j:' .. phase
    values[#values + 1] = cmsgpack.pack(at_hand[phase])
  end
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

local function commit(header, record)
  local task, create, version, guard_phase, guard_fence, receipt, state = unpack(header, 1, 7)
  local final, priority, jobs, at, notices, deltas, token = unpack(header, 8, 14)
  local hash = P .. 't:' .. task
  local fields, asked = {'v', 's', 'c', 'n'}, {}
  local function ask(phase)
    if not asked[phase] then
      fields[#fields + 1] = 'j:' .. phase
      asked[phase] = #fields
    end
  end
  if guard_phase ~= '' then
    ask(guard_phase)
  end
  for _, change in ipairs(jobs) do
    ask(change[1])
  end
  local current = redis.call('HMGET', hash, unpack(fields))
  local found, before, number = tonumber(current[1] or -1), current[2], current[4]
  if current[3] and tonumber(current[3]) == token then
    -- The same call again: the answer to its first try was lost on the way.
    return 'a'
  end
  local at_hand = {}
  for phase, place in pairs(asked) do
    at_hand[phase] = read_job(current[place])
  end
  if create then
    if before then
      return 'e'
    end
    number = next_sequence()
  elseif guard_phase ~= '' and (not at_hand[guard_phase] or at_hand[guard_phase][FENCE] ~= guard_fence) then
    drop_stale(receipt)
    return 's'
  elseif not before then
    return 'm'
  elseif found ~= version then
    return 'c'
  end
  local values = {'r', record, 'v', version + 1, 's', state, 'c', token}
  if create then
    values[9], values[10] = 'n', string.format('%.0f', number)
  end
  index(task, before, state, string.format('%.0f', number))
  if final then
    if before then
      forget_jobs(task, hash)
    end
  else
    change_jobs(task, jobs, guard_phase, priority, at_hand, values)
  end
  redis.call('HSET', hash, unpack(values))
  if notices ~= '' then
    -- About ten thousand lines: a step has two on average.
    redis.call('XADD', P .. 'events', 'MAXLEN', '~', 5000, '*', 't', task, 'at', at, 'e', notices)
  end
  for _, delta in ipairs(deltas) do
    count(delta[1], delta[2])
  end
  if receipt ~= '' then
    acknowledge(receipt)
  end
  return 'a'
end

local results = {}
for i = 2, #ARGV, 2 do
  local header = cmsgpack.unpack(ARGV[i])
  if header[2] and tonumber(redis.call('HGET', P .. 'meta', 'generation') or 1) > tonumber(ARGV[1]) then
    return 'generation'
  end
  results[#results + 1] = commit(header, ARGV[i + 1])
end
if sequence then
  redis.call('SET', P .. 'seq', string.format('%.0f', sequence))
end
flush()
return results
