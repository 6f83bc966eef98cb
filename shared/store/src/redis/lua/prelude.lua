-- What every script starts with.
--
-- KEYS[1]  the partition's prefix, e.g. `refile:{0}:`; every key of the partition starts with it and so shares its slot
--
-- Keys of a partition:
--   t:<task>             hash: r record, v version, s state, c token of the last commit,
--                        j:<phase> job (below)
--   q:<queue>:<priority> stream of jobs that are ready: t task, p phase. Group `w`; consumers are workers
--   leases:<queue>       sorted set of <task>/<phase> by the time at which the lease runs out
--   delayed              sorted set of <task>/<phase> by the time at which the job is due
--   outcomes             stream of outcomes: t, p, f fence, a attempt, k kind, o payload. Group `c`; consumers are coordinators
--   idx, idx:<state>     sorted sets of tasks by sequence number
--   escalated            sorted set of escalated tasks by the time at which their records last changed
--   idem                 hash: idempotency key -> task
--   counts, depth        hashes: counters and gauges; ready jobs by <queue>:<priority>
--   events               stream: the event log: t, at, e
--   pauses, quarantine   hashes
--   workers, workers:seen  hash and sorted set of processes
--   wake:<name>          list of tokens; whoever waits for work blocks on it
--   meta                 hash: epoch, partitions, schema, beat
--
-- A job is an array: place, queue, priority, attempt, fence, deliveries, owner, entry, since.
-- Places: q queued, d delayed, l leased, r reported, x quarantined, n none (only the fence is kept).
-- A queue's entry counts only while the job names it; others are left in the stream and dropped when they are read, since
-- deleting an unread entry would spoil the group's lag.

local P = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local PLACE, QUEUE, PRIORITY, ATTEMPT, FENCE, DELIVERIES, OWNER, ENTRY, SINCE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local PRIORITIES = {'high', 'normal', 'low'}

-- The job of a phase; nothing where there is none. The second value tells that there is one that cannot be read.
local function get_job(task, phase)
  local packed = redis.call('HGET', P .. 't:' .. task, 'j:' .. phase)
  if not packed then
    return nil, false
  end
  local read, job = pcall(cmsgpack.unpack, packed)
  if read and type(job) == 'table' and #job == SINCE then
    return job, false
  end
  return nil, true
end

local function put_job(task, phase, job)
  redis.call('HSET', P .. 't:' .. task, 'j:' .. phase, cmsgpack.pack(job))
end

local function stream(job)
  return P .. 'q:' .. job[QUEUE] .. ':' .. job[PRIORITY]
end

local function count(key, by)
  redis.call('HINCRBY', P .. 'counts', key, by)
end

-- Tokens are bounded: who claims as many jobs as it asked for leaves a new one for the next.
local function wake(name)
  if redis.call('LLEN', P .. 'wake:' .. name) < 64 then
    redis.call('LPUSH', P .. 'wake:' .. name, '1')
  end
end

-- Puts a job, wherever it was, into its queue. The caller stores it.
local function make_ready(task, phase, job)
  job[PLACE], job[OWNER], job[SINCE] = 'q', '', now
  job[ENTRY] = redis.call('XADD', stream(job), '*', 't', task, 'p', phase)
  redis.call('HINCRBY', P .. 'depth', job[QUEUE] .. ':' .. job[PRIORITY], 1)
  wake(job[QUEUE])
end

local function acknowledge_job(key, entry)
  redis.call('XACK', key, 'w', entry)
  redis.call('XDEL', key, entry)
end

-- Tells whether it was still there.
local function acknowledge_outcome(id)
  redis.call('XACK', P .. 'outcomes', 'c', id)
  return redis.call('XDEL', P .. 'outcomes', id) == 1
end

-- Moves an entry of the outcomes' stream into the quarantine.
local function set_outcome_aside(entry, task, phase, reason)
  local aside = {task = task, phase = phase, what = 'outcome', reason = reason, fields = {}}
  for i = 1, #entry[2] do
    -- JSON holds no bytes; they go in as hexadecimal digits.
    aside.fields[i] = string.gsub(entry[2][i], '.', function(c) return string.format('%02x', string.byte(c)) end)
  end
  redis.call('HSET', P .. 'quarantine', 'outcome:' .. entry[1], cjson.encode(aside))
  count('quarantined_total', 1)
  acknowledge_outcome(entry[1])
end

-- Takes a job out of wherever it is. The caller gives it its new place and stores it.
local function take_out(task, phase, job)
  local place, member = job[PLACE], task .. '/' .. phase
  if place == 'q' then
    redis.call('HINCRBY', P .. 'depth', job[QUEUE] .. ':' .. job[PRIORITY], -1)
  elseif place == 'd' then
    redis.call('ZREM', P .. 'delayed', member)
  elseif place == 'l' then
    redis.call('ZREM', P .. 'leases:' .. job[QUEUE], member)
    acknowledge_job(stream(job), job[ENTRY])
  elseif place == 'x' then
    redis.call('HDEL', P .. 'quarantine', 'job:' .. member)
  end
  job[PLACE], job[OWNER], job[ENTRY] = 'n', '', ''
end

local function holds(job, fence, owner)
  return job and job[PLACE] == 'l' and job[FENCE] == fence and job[OWNER] == owner
end

local function split(member)
  return string.match(member, '^([^/]+)/(.+)$')
end

local function next_in(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now)
end
