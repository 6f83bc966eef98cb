-- What every script starts with.
--
-- KEYS[1]  the partition's prefix, e.g. `refile:{0}:`; every key of the partition starts with it and so shares its slot
-- KEYS[2]  the prefix of the lists on which waiting processes block, e.g. `refile:{wake}:`; none in a cluster, where they may
--          lie on another server: there the caller wakes
--
-- Keys of a partition:
--   records, texts       hashes: task -> version (8 bytes) and record without its description; task -> description, which
--                        never changes
--   heads                hash: task -> sequence number (16 digits), state, version, token of the last commit, phases joined
--                        by US
--   jobs                 hash: <task>/<phase> -> job (below)
--   q:<queue>:<priority>:<lane>  stream of jobs that are ready: task -> phase; there only while it has entries
--   ring:<queue>:<priority>      sorted set of the lanes that have ready jobs, by whose turn it is
--   turns                hash: <queue>:<priority> the last turn given; <queue> how many jobs were claimed
--   leases, leased       sorted set of <task>/<phase>/<fence> by the time at which the lease runs out; hash: how many by queue
--   delayed              sorted set of <task>/<phase> by the time at which the job is due
--   outcomes             stream of outcomes: <task>/<phase>/<fence>/<attempt> -> payload, or `!<deliveries>` for a job that
--                        was given up. Group `c`; consumers are coordinators
--   idx:<state>          sorted set of tasks by sequence number
--   seq                  the last sequence number
--   escalated            sorted set of escalated tasks by the time at which their records last changed
--   counts, depth        hashes: counters and gauges; ready jobs by <queue>:<priority>
--   events, events:lines stream: the event log, an entry for each call: how many lines -> JSON list of {task, time, notices};
--                        and how many lines there are
--   pauses, quarantine   hashes; pauses of providers are kept in the first partition alone
--   meta                 hash: epoch, schema, beat, generation (how often partitions were added), partitions,
--                        growing (what partitions are to be, while some are added)
-- Of the first partition only:
--   workers, workers:seen  hash and sorted set of processes
--   probes               hash: pause of a provider -> until when a call has it to itself that tries whether it is over
--   draws                hash: of what there is so much a minute: when a minute's worth will be there again, in microseconds
--   permits, held        sorted set of <name> RS <lease> by the time at which it runs out; hash of how many by name
--
-- A job is a text: fence, place, who, deliveries, attempt, queue, priority, lane; the lane is the rest and may hold spaces.
-- Places: q queued (who is the entry), l leased or reported (who is the owner; reported when it is not in `leases`), r given
-- up, d delayed, x quarantined. `<fence> n` is what is kept of a phase that has no job.
-- A claimed job has left its stream: the lease in its own record is the claim, since only a script can check its owner
-- and its fence. A lane is what has to share turns: repository, workflow, agent or reviewer, joined by US.
--
-- What costs here is the number of commands, of texts that are made and of large values: tasks share hashes, so that a call
-- reads and writes them with one command for all of its items; what items have in common is told once; records are read
-- beside the scripts.

local P = KEYS[1]
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local PRIORITIES = {'high', 'normal', 'low'}
local QUEUES = {'code', 'review', 'land'}

-- As many arguments as are passed at once: Lua's stack holds no more than some thousands.
local CHUNK = 1000

-- Fields of the shared hashes as this call knows them, and those that it has changed; `false` for one that is not there.
local known = {heads = {}, jobs = {}}
local changed = {heads = {}, jobs = {}}
-- Changes of other keys, gathered so that each key is changed once: sums of numbers, scores of members.
local sums, scores, acknowledged = {}, {}, {}

-- Reads fields of a shared hash, all at once: their values in the same order.
local function read_all(hash, fields)
  if #fields > 0 and #fields <= CHUNK then
    return call('HMGET', P .. hash, unpack(fields))
  end
  local values = {}
  for from = 1, #fields, CHUNK do
    local till = math.min(#fields, from + CHUNK - 1)
    local some = call('HMGET', P .. hash, unpack(fields, from, till))
    for i = from, till do
      values[i] = some[i - from + 1]
    end
  end
  return values
end

-- Reads fields of a shared hash for `get`.
local function load(hash, fields)
  local to = known[hash]
  for i, value in ipairs(read_all(hash, fields)) do
    to[fields[i]] = value
  end
end

local function get(hash, field)
  local value = known[hash][field]
  if value == nil then
    value = call('HGET', P .. hash, field)
    known[hash][field] = value
  end
  return value
end

-- `false` takes the field out.
local function set(hash, field, value)
  known[hash][field] = value
  changed[hash][field] = value
end

local function add(hash, field, by)
  local fields = sums[hash]
  if not fields then
    fields = {}
    sums[hash] = fields
  end
  fields[field] = (fields[field] or 0) + by
end

local function count(key, by)
  add('counts', key, by)
end

-- The member's score in a sorted set; `false` takes it out.
local function score(set, member, value)
  local members = scores[set]
  if not members then
    members = {}
    scores[set] = members
  end
  members[member] = value
end

-- Names whose waiting are to be woken: queues, `outcomes`.
local woken = {}

-- Calls a command on a key with many arguments.
local function call_with_all(command, key, arguments, first)
  for from = 1, #arguments, CHUNK do
    local till = math.min(#arguments, from + CHUNK - 1)
    if first then
      call(command, key, first, unpack(arguments, from, till))
    else
      call(command, key, unpack(arguments, from, till))
    end
  end
end

-- The last thing that a script which changes something does. What is acknowledged is acknowledged last.
local function flush()
  for hash, fields in pairs(changed) do
    local pairs_of, gone = {}, {}
    for field, value in pairs(fields) do
      if value then
        pairs_of[#pairs_of + 1] = field
        pairs_of[#pairs_of + 1] = value
      else
        gone[#gone + 1] = field
      end
    end
    call_with_all('HSET', P .. hash, pairs_of)
    call_with_all('HDEL', P .. hash, gone)
  end
  for hash, fields in pairs(sums) do
    for field, by in pairs(fields) do
      if by ~= 0 then
        call('HINCRBY', P .. hash, field, by)
      end
    end
  end
  for set, members in pairs(scores) do
    local added, gone = {}, {}
    for member, value in pairs(members) do
      if value then
        added[#added + 1] = value
        added[#added + 1] = member
      else
        gone[#gone + 1] = member
      end
    end
    call_with_all('ZADD', P .. set, added)
    call_with_all('ZREM', P .. set, gone)
  end
  call_with_all('XACK', P .. 'outcomes', acknowledged, 'c')
  call_with_all('XDEL', P .. 'outcomes', acknowledged)
  for name in pairs(KEYS[2] and woken or {}) do
    -- One token is enough: who claims and leaves something wakes the next.
    if call('LLEN', KEYS[2] .. name) == 0 then
      call('LPUSH', KEYS[2] .. name, '1')
    end
  end
end

-- Reads a stored job: fence, place, who, deliveries, rest; nothing where there is none or it cannot be read.
local function read_job(stored)
  return string.match(stored, '^(%d+) (%l) (%S+) (%d+) (%d+ %l+ %l+ .*)$')
end

-- Reads the rest of a job: attempt, queue, priority, lane.
local function read_rest(rest)
  return string.match(rest, '^(%d+) (%l+) (%l+) (.*)$')
end

local function keep_job(name, fence, place, who, deliveries, rest)
  set('jobs', name, fence .. ' ' .. place .. ' ' .. who .. ' ' .. deliveries .. ' ' .. rest)
end

-- Of a number as a text the one after it. Most are small, and made once.
local following = {}
local function after(number)
  local next_one = following[number]
  if not next_one then
    next_one = string.format('%d', number + 1)
    following[number] = next_one
  end
  return next_one
end

local function split(name)
  return string.match(name, '^([^/]+)/(.+)$')
end

-- The lanes that this call has seen in their rings.
local ringed = {}

local function lane_of(queue, priority, lane)
  local line = queue .. ':' .. priority
  return {queue = queue, line = line, name = lane, key = P .. 'q:' .. line .. ':' .. lane}
end

-- Puts a job into its lane and gives its entry. The caller stores it.
local function enqueue(lane, task, phase)
  local entry = call('XADD', lane.key, '*', task, phase)
  if not ringed[lane.key] then
    ringed[lane.key] = true
    if not call('ZSCORE', P .. 'ring:' .. lane.line, lane.name) then
      call('ZADD', P .. 'ring:' .. lane.line, call('HINCRBY', P .. 'turns', lane.line, 1), lane.name)
    end
  end
  add('depth', lane.line, 1)
  woken[lane.queue] = true
  return entry
end

-- Puts a job that was somewhere else into its queue. Gives the queue.
local function make_ready(name, fence, deliveries, rest)
  local task, phase = split(name)
  local _, queue, priority, lane = read_rest(rest)
  keep_job(name, fence, 'q', enqueue(lane_of(queue, priority, lane), task, phase), deliveries, rest)
  return queue
end

-- Puts the job of a change {phase, put, delay ms, rest, queue, priority, lane} where it belongs, and gives it as a text.
local function put_job(name, task, change, fence)
  local delay, rest = change[3], change[4]
  if delay > 0 then
    score('delayed', name, string.format('%d', now + delay))
    return fence .. ' d - 0 ' .. rest
  end
  if not change.lane then
    change.lane = lane_of(change[5], change[6], change[7])
  end
  return fence .. ' q ' .. enqueue(change.lane, task, change[1]) .. ' 0 ' .. rest
end

-- Takes a job out of wherever it is. The caller stores it anew.
local function take_out(name, fence, place, who, rest)
  if place == 'q' then
    local _, queue, priority, lane = read_rest(rest)
    local line = queue .. ':' .. priority
    local key = P .. 'q:' .. line .. ':' .. lane
    add('depth', line, -1)
    call('XDEL', key, who)
    if call('XLEN', key) == 0 then
      call('DEL', key)
      call('ZREM', P .. 'ring:' .. line, lane)
      ringed[key] = nil
    end
  elseif place == 'd' then
    score('delayed', name, false)
  elseif place == 'l' then
    -- What was reported is no longer there.
    if call('ZREM', P .. 'leases', name .. '/' .. fence) == 1 then
      local _, queue = read_rest(rest)
      add('leased', queue, -1)
    end
  elseif place == 'x' then
    call('HDEL', P .. 'quarantine', 'job:' .. name)
  end
end

-- Drops an outcome that changes nothing: counted once, however often it is dropped.
local function drop_stale(id)
  call('XACK', P .. 'outcomes', 'c', id)
  if call('XDEL', P .. 'outcomes', id) == 1 then
    count('stale_outcomes_total', 1)
  end
end

-- Moves an entry of the outcomes' stream into the quarantine.
local function set_outcome_aside(entry, task, phase, reason)
  if not entry then
    return
  end
  local aside = {task = task, phase = phase, what = 'outcome', reason = reason, fields = {}}
  for i = 1, #entry[2] do
    -- JSON holds no bytes; they go in as hexadecimal digits.
    aside.fields[i] = string.gsub(entry[2][i], '.', function(c) return string.format('%02x', string.byte(c)) end)
  end
  call('HSET', P .. 'quarantine', 'outcome:' .. entry[1], cjson.encode(aside))
  count('quarantined_total', 1)
  acknowledged[#acknowledged + 1] = entry[1]
end

-- Sets a job aside that cannot be read.
local function set_job_aside(name, reason)
  local task, phase = split(name)
  local aside = {task = task, phase = phase, what = 'job', reason = reason}
  call('HSET', P .. 'quarantine', 'job:' .. name, cjson.encode(aside))
  count('quarantined_total', 1)
end

local function next_in(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now)
end

-- Writes the event log, which keeps about ten thousand lines. `told` is JSON: a list of {task, time, notices}, one for each
-- result; `said` is how many notices those are.
local function write_log(results, said, told)
  said = tonumber(said)
  for _, result in ipairs(results) do
    if result ~= 'a' then
      -- Only what happened is told.
      local happened = {}
      said = 0
      for i, item in ipairs(cjson.decode(told)) do
        if results[i] == 'a' then
          happened[#happened + 1] = item
          said = said + #item[3]
        end
      end
      told = cjson.encode(happened)
      break
    end
  end
  if said == 0 then
    return
  end
  call('XADD', P .. 'events', '*', said, told)
  local kept = call('INCRBY', P .. 'events:lines', said)
  while kept > 10500 do
    local oldest = call('XRANGE', P .. 'events', '-', '+', 'COUNT', 1)[1]
    if not oldest or kept - oldest[2][1] < 10000 then
      break
    end
    call('XDEL', P .. 'events', oldest[1])
    kept = call('DECRBY', P .. 'events:lines', oldest[2][1])
  end
end
