-- What every script starts with.
--
-- KEYS[1]  the partition's prefix, e.g. `refile:{0}:`; every key of the partition starts with it and so shares its slot
--
-- Keys of a partition:
--   t:<task>             hash: r record, v version, s state, c token of the last commit, n sequence number,
--                        j:<phase> job (below)
--   q:<queue>:<priority>:<lane>  stream of jobs that are ready: t task, p phase; there only while it has entries
--   ring:<queue>:<priority>      sorted set of the lanes that have ready jobs, by whose turn it is
--   turns                hash: <queue>:<priority> the last turn given; <queue> how many jobs were claimed
--   leases:<queue>       sorted set of <task>/<phase> by the time at which the lease runs out
--   delayed              sorted set of <task>/<phase> by the time at which the job is due
--   outcomes             stream of outcomes: t, p, f fence, a attempt, k kind, o payload. Group `c`; consumers are coordinators
--   idx:<state>          sorted set of tasks by sequence number
--   seq                  the last sequence number
--   escalated            sorted set of escalated tasks by the time at which their records last changed
--   counts, depth        hashes: counters and gauges; ready jobs by <queue>:<priority>
--   events               stream: the event log: t, at, e a JSON list of notices
--   pauses, quarantine   hashes
--   meta                 hash: epoch, schema, beat, generation (how often partitions were added), partitions
-- Of the first partition only:
--   workers, workers:seen  hash and sorted set of processes
--   permits, held        sorted set of <name> RS <lease> by the time at which it runs out; hash of how many by name
--
-- A job is an array: place, queue, priority, attempt, fence, deliveries, owner, entry, since, lane.
-- Places: q queued, d delayed, l leased, r reported, x quarantined, n none (only the fence is kept).
-- A claimed job has left its stream: the lease in its own record is the claim, since only a script can check its owner
-- and its fence. A lane is what has to share turns: repository, workflow, agent or reviewer, joined by US.

local P = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local PLACE, QUEUE, PRIORITY, ATTEMPT, FENCE, DELIVERIES, OWNER, ENTRY, SINCE, LANE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local PRIORITIES = {'high', 'normal', 'low'}
local QUEUES = {'code', 'review', 'land'}

-- Changes of keys that the items of one call share are gathered, and made by `flush`, each key once.
local sums, scores, entries = {}, {}, {}

local function gather(into, key, field, value)
  local fields = into[key]
  if not fields then
    fields = {}
    into[key] = fields
  end
  fields[field] = value
end

local function add(hash, field, by)
  local fields = sums[hash]
  gather(sums, hash, field, (fields and fields[field] or 0) + by)
end

local function count(key, by)
  add('counts', key, by)
end

-- The member's score in a sorted set; `false` takes it out.
local function score(set, member, value)
  gather(scores, set, member, value)
end

-- Calls a command on a key with many arguments, so many at a time as Lua's stack holds.
local function call_with_all(command, key, extra, arguments)
  for from = 1, #arguments, 1000 do
    local to = math.min(#arguments, from + 999)
    if extra then
      redis.call(command, key, extra, unpack(arguments, from, to))
    else
      redis.call(command, key, unpack(arguments, from, to))
    end
  end
end

-- The last thing that a script which changes something does. What is acknowledged is acknowledged last.
local function flush()
  for hash, fields in pairs(sums) do
    for field, by in pairs(fields) do
      if by ~= 0 then
        redis.call('HINCRBY', P .. hash, field, by)
      end
    end
  end
  for set, members in pairs(scores) do
    local added, taken = {}, {}
    for member, value in pairs(members) do
      if value then
        added[#added + 1], added[#added + 2] = value, member
      else
        taken[#taken + 1] = member
      end
    end
    call_with_all('ZADD', P .. set, nil, added)
    call_with_all('ZREM', P .. set, nil, taken)
  end
  if entries[1] then
    call_with_all('XACK', P .. 'outcomes', 'c', entries)
    call_with_all('XDEL', P .. 'outcomes', nil, entries)
  end
  sums, scores, entries = {}, {}, {}
end

-- Reads a stored job; nothing where there is none. The second value tells that there is one that cannot be read.
local function read_job(packed)
  if not packed then
    return nil, false
  end
  local read, job = pcall(cmsgpack.unpack, packed)
  if read and type(job) == 'table' and #job == LANE then
    return job, false
  end
  return nil, true
end

local function get_job(task, phase)
  return read_job(redis.call('HGET', P .. 't:' .. task, 'j:' .. phase))
end

local function put_job(task, phase, job)
  redis.call('HSET', P .. 't:' .. task, 'j:' .. phase, cmsgpack.pack(job))
end

local function lane_stream(queue, priority, lane)
  return P .. 'q:' .. queue .. ':' .. priority .. ':' .. lane
end

-- The lanes that this call has seen in their rings.
local ringed = {}

-- Puts a job, wherever it was, into its queue. The caller stores it.
local function make_ready(task, phase, job)
  local queue, priority, lane = job[QUEUE], job[PRIORITY], job[LANE]
  local key = lane_stream(queue, priority, lane)
  job[PLACE], job[OWNER], job[SINCE] = 'q', '', now
  job[ENTRY] = redis.call('XADD', key, '*', 't', task, 'p', phase)
  if not ringed[key] then
    ringed[key] = true
    local ring = queue .. ':' .. priority
    if not redis.call('ZSCORE', P .. 'ring:' .. ring, lane) then
      redis.call('ZADD', P .. 'ring:' .. ring, redis.call('HINCRBY', P .. 'turns', ring, 1), lane)
    end
  end
  add('depth', queue .. ':' .. priority, 1)
end

-- Takes a job out of wherever it is. The caller gives it its new place and stores it.
local function take_out(task, phase, job)
  local place = job[PLACE]
  if place == 'q' then
    local queue, priority, lane = job[QUEUE], job[PRIORITY], job[LANE]
    local key = lane_stream(queue, priority, lane)
    add('depth', queue .. ':' .. priority, -1)
    redis.call('XDEL', key, job[ENTRY])
    if redis.call('XLEN', key) == 0 then
      redis.call('DEL', key)
      redis.call('ZREM', P .. 'ring:' .. queue .. ':' .. priority, lane)
      ringed[key] = nil
    end
  elseif place == 'd' then
    score('delayed', task .. '/' .. phase, false)
  elseif place == 'l' then
    score('leases:' .. job[QUEUE], task .. '/' .. phase, false)
  elseif place == 'x' then
    redis.call('HDEL', P .. 'quarantine', 'job:' .. task .. '/' .. phase)
  end
  job[PLACE], job[OWNER], job[ENTRY] = 'n', '', ''
end

-- Acknowledges an outcome at the end.
local function acknowledge(id)
  entries[#entries + 1] = id
end

-- Drops an outcome that changes nothing: counted once, however often it is dropped.
local function drop_stale(id)
  redis.call('XACK', P .. 'outcomes', 'c', id)
  if redis.call('XDEL', P .. 'outcomes', id) == 1 then
    count('stale_outcomes_total', 1)
  end
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
  acknowledge(entry[1])
end

-- Sets a job aside that cannot be read.
local function set_job_aside(task, phase, reason)
  local aside = {task = task, phase = phase, what = 'job', reason = reason}
  redis.call('HSET', P .. 'quarantine', 'job:' .. task .. '/' .. phase, cjson.encode(aside))
  count('quarantined_total', 1)
end

local function holds(job, fence, owner)
  return job and job[PLACE] == 'l' and job[FENCE] == fence and job[OWNER] == owner
end

local function is_here(task)
  return redis.call('EXISTS', P .. 't:' .. task) == 1
end

local function split(member)
  return string.match(member, '^([^/]+)/(.+)$')
end

local function next_in(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now)
end
