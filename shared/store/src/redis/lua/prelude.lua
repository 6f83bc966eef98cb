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
--   outcomes             stream of outcomes: <task>/<phase>/<fence>/<attempt> -> payload, or `!<deliveries>` for a job that
--                        was given up. Group `c`; consumers are coordinators
--   idx:<state>          sorted set of tasks by sequence number
--   seq                  the last sequence number
--   escalated            sorted set of escalated tasks by the time at which their records last changed
--   counts, depth        hashes: counters and gauges; ready jobs by <queue>:<priority>
--   events, events:lines stream: the event log, an entry for each call: n how many lines, then <task> <at> -> JSON list
--                        of notices; and how many lines there are
--   pauses, quarantine   hashes
--   meta                 hash: epoch, schema, beat, generation (how often partitions were added), partitions
-- Of the first partition only:
--   workers, workers:seen  hash and sorted set of processes
--   permits, held        sorted set of <name> RS <lease> by the time at which it runs out; hash of how many by name
--
-- A job is a text: fence, place, who, deliveries, attempt, queue, priority, lane; the lane is the rest and may hold spaces.
-- Places: q queued (who is the entry), l leased or reported (who is the owner; reported when it is not in `leases`),
-- d delayed, r given up, x quarantined, n none (only the fence is kept).
-- A claimed job has left its stream: the lease in its own record is the claim, since only a script can check its owner
-- and its fence. A lane is what has to share turns: repository, workflow, agent or reviewer, joined by US.
-- Lua is slow at what it does much of: texts that a pattern reads are quicker here than packed arrays, and large values
-- stay out of the scripts where they can.

local P = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
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

-- Reads a stored job: fence, place, who, deliveries, rest; nothing where it cannot be read.
local function read_job(stored)
  return string.match(stored, '^(%d+) (%l) (%S+) (%d+) (%d+ %l+ %l+ .*)$')
end

-- Reads the rest of a job: attempt, queue, priority, lane.
local function read_rest(rest)
  return string.match(rest, '^(%d+) (%l+) (%l+) (.*)$')
end

local function get_job(task, phase)
  return redis.call('HGET', P .. 't:' .. task, 'j:' .. phase)
end

local function put_job(task, phase, fence, place, who, deliveries, rest)
  local job = fence .. ' ' .. place .. ' ' .. who .. ' ' .. deliveries .. ' ' .. rest
  redis.call('HSET', P .. 't:' .. task, 'j:' .. phase, job)
end

-- The lanes that this call has seen in their rings.
local ringed = {}

-- Puts a job into its queue and gives its entry. The caller stores it.
local function enqueue(task, phase, queue, priority, lane)
  local line = queue .. ':' .. priority
  local key = P .. 'q:' .. line .. ':' .. lane
  local entry = redis.call('XADD', key, '*', task, phase)
  if not ringed[key] then
    ringed[key] = true
    if not redis.call('ZSCORE', P .. 'ring:' .. line, lane) then
      redis.call('ZADD', P .. 'ring:' .. line, redis.call('HINCRBY', P .. 'turns', line, 1), lane)
    end
  end
  add('depth', line, 1)
  return entry
end

-- Puts a job, wherever it was, into its queue, and stores it. Gives the queue.
local function make_ready(task, phase, fence, deliveries, rest)
  local _, queue, priority, lane = read_rest(rest)
  put_job(task, phase, fence, 'q', enqueue(task, phase, queue, priority, lane), deliveries, rest)
  return queue
end

-- Takes a job out of wherever it is. The caller stores it anew.
local function take_out(task, phase, place, who, rest)
  if place == 'q' then
    local _, queue, priority, lane = read_rest(rest)
    local line = queue .. ':' .. priority
    local key = P .. 'q:' .. line .. ':' .. lane
    add('depth', line, -1)
    redis.call('XDEL', key, who)
    if redis.call('XLEN', key) == 0 then
      redis.call('DEL', key)
      redis.call('ZREM', P .. 'ring:' .. line, lane)
      ringed[key] = nil
    end
  elseif place == 'd' then
    score('delayed', task .. '/' .. phase, false)
  elseif place == 'l' then
    local _, queue = read_rest(rest)
    score('leases:' .. queue, task .. '/' .. phase, false)
  elseif place == 'x' then
    redis.call('HDEL', P .. 'quarantine', 'job:' .. task .. '/' .. phase)
  end
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
