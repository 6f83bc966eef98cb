-- Commits transitions, each whole or not at all; also adds new tasks.
--
-- ARGV   for each: header (MessagePack, below), record
--        header: task, create, key, version, guard phase, guard fence, receipt, state, is final, priority,
--                jobs {phase, put, queue, attempt, delay ms}, notices {at, JSON}, deltas {key, by}, token
-- Result for each: {what, task}; what: a applied, s stale, c conflict, e there already

local function stale(receipt)
  if acknowledge_outcome(receipt) then
    count('stale_outcomes_total', 1)
  end
  return 's'
end

local function change_jobs(task, jobs, guard_phase, priority)
  local raised = {}
  local function raise(phase, job)
    if not raised[phase] then
      job[FENCE] = job[FENCE] + 1
      raised[phase] = true
    end
  end
  if guard_phase ~= '' then
    local job = get_job(task, guard_phase)
    take_out(task, guard_phase, job)
    raise(guard_phase, job)
    put_job(task, guard_phase, job)
  end
  for _, change in ipairs(jobs) do
    local phase, put, queue, attempt, delay = change[1], change[2], change[3], change[4], change[5]
    local job = get_job(task, phase) or {'n', queue, priority, attempt, 0, 0, '', '', now}
    take_out(task, phase, job)
    raise(phase, job)
    if put then
      job[QUEUE], job[PRIORITY], job[ATTEMPT], job[DELIVERIES] = queue, priority, attempt, 0
      if delay > 0 then
        job[PLACE], job[SINCE] = 'd', now + delay
        redis.call('ZADD', P .. 'delayed', now + delay, task .. '/' .. phase)
      else
        make_ready(task, phase, job)
      end
    end
    put_job(task, phase, job)
  end
end

local function forget_jobs(task)
  local key = P .. 't:' .. task
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 2) == 'j:' then
      local phase = string.sub(field, 3)
      take_out(task, phase, get_job(task, phase))
      redis.call('HDEL', key, field)
    end
  end
end

local function index(task, before, state)
  local sequence = redis.call('ZSCORE', P .. 'idx', task)
  if not sequence then
    local last = redis.call('ZRANGE', P .. 'idx', -1, -1, 'WITHSCORES')
    -- Microseconds, so that partitions can be merged by it; still exact as a double.
    sequence = string.format('%.0f', math.max((last[2] or 0) + 1, time[1] * 1000000 + time[2]))
    redis.call('ZADD', P .. 'idx', sequence, task)
  end
  if before ~= state then
    if before then
      redis.call('ZREM', P .. 'idx:' .. before, task)
    end
    redis.call('ZADD', P .. 'idx:' .. state, sequence, task)
  end
  if state == 'escalated' then
    redis.call('ZADD', P .. 'escalated', now, task)
  elseif before == 'escalated' then
    redis.call('ZREM', P .. 'escalated', task)
  end
end

local function commit(header, record)
  local task, create, key, version, guard_phase, guard_fence, receipt = unpack(header, 1, 7)
  local state, final, priority, jobs, notices, deltas, token = unpack(header, 8, 14)
  local hash = P .. 't:' .. task
  local current = redis.call('HMGET', hash, 'v', 's', 'c')
  if current[3] and tonumber(current[3]) == token then
    -- The same call again: the answer to its first try was lost on the way.
    return {'a', task}
  end
  if create then
    if current[1] then
      return {'e', task}
    end
    local first = key ~= '' and redis.call('HGET', P .. 'idem', key)
    if first then
      return {'e', first}
    end
    if key ~= '' then
      redis.call('HSET', P .. 'idem', key, task)
    end
  else
    local found = tonumber(current[1] or -1)
    if guard_phase ~= '' then
      local job = get_job(task, guard_phase)
      if not job or job[FENCE] ~= guard_fence then
        return {stale(receipt), task}
      end
    end
    if found ~= version then
      return {'c', task}
    end
  end
  redis.call('HSET', hash, 'r', record, 'v', version + 1, 's', state, 'c', token)
  index(task, current[2], state)
  change_jobs(task, jobs, guard_phase, priority)
  if final then
    forget_jobs(task)
  end
  for _, notice in ipairs(notices) do
    redis.call('XADD', P .. 'events', 'MAXLEN', '~', 10000, '*', 't', task, 'at', notice[1], 'e', notice[2])
  end
  for _, delta in ipairs(deltas) do
    count(delta[1], delta[2])
  end
  if receipt ~= '' then
    acknowledge_outcome(receipt)
  end
  return {'a', task}
end

local results = {}
for i = 1, #ARGV, 2 do
  results[#results + 1] = commit(cmsgpack.unpack(ARGV[i]), ARGV[i + 1])
end
return results
