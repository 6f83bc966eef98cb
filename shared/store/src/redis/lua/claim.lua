-- Claims jobs.
--
-- ARGV   owner, most jobs, lease in ms, limits (MessagePack, or the empty string for none), then the queues in order
--        limits: room by name, room of a repository that is not named (or -1), list of
--        providers by agent or reviewer, room for landings on a base branch that is not named (or -1)
-- Result {now in ms; for each: task/phase, entry, job; the queues that have more; for each: record, description, where
--         they are few: large values are slow here, and many are read beside the script}
--
-- Of sixteen jobs that are claimed from a queue, twelve are of high priority, three of normal and one of low, where all
-- have ready jobs; what one does not use goes to the others, the higher first. Within a priority the lanes take turns.

local owner, most, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limits = ARGV[4] ~= '' and cmsgpack.unpack(ARGV[4])
-- What was picked: <task>/<phase>, entry, and the ring that it is from.
local names, entries, rings_of = {}, {}, {}
local till = string.format('%d', now + lease)

local function is_paused(queue)
  local pause = call('HGET', P .. 'pauses', 'queue:' .. queue)
  if not pause then
    return false
  end
  local ends = cjson.decode(pause)['until']
  return ends == cjson.null or ends > now
end

-- The names whose limits a lane's jobs count against.
local function limited_names(lane)
  local repository, workflow, who = string.match(lane, '^(.-)\31(.-)\31(.*)$')
  local base = string.match(who or '', '^land:(.*)$')
  local landing = base and 'landing:' .. (repository or '') .. ' ' .. base
  repository = 'repository:' .. (repository or '')
  local room, anywhere, providers, landings = limits[1], limits[2], limits[3], limits[4]
  if landing and landings >= 0 and not room[landing] then
    room[landing] = landings
  end
  if anywhere >= 0 and not room[repository] then
    room[repository] = anywhere
  end
  local names = {}
  local function add_all(all)
    for _, name in ipairs(all) do
      if room[name] then
        names[#names + 1] = name
      end
    end
  end
  add_all({repository, 'workflow:' .. (workflow or ''), who or ''})
  add_all({landing})
  add_all(providers[who or ''] or {})
  return names
end

local function has_room(lane)
  for _, name in ipairs(lane.names) do
    if limits[1][name] <= 0 then
      return false
    end
  end
  return true
end

-- The lanes of one queue and priority, in the order of their turns. Read a page at a time: there may be many.
local function open_ring(queue, priority)
  local ring = {
    queue = queue, priority = priority, name = queue .. ':' .. priority,
    waiting = {}, head = 1, loaded = 0, again = {}, touched = {}, given = 0,
  }
  ring.size = call('ZCARD', P .. 'ring:' .. ring.name)
  return ring
end

-- The next entry of a lane; nothing where it has no more.
local function peek(ring, lane)
  if lane.next > #lane.entries and not lane.is_read then
    local want = math.max(1, math.ceil((most - #names) / ring.size))
    lane.entries = call('XRANGE', lane.key, lane.from, '+', 'COUNT', want)
    lane.next = 1
    lane.is_read = #lane.entries < want
    if #lane.entries > 0 then
      lane.from = '(' .. lane.entries[#lane.entries][1]
    end
  end
  return lane.entries[lane.next]
end

-- The lane whose turn it is, and its first entry.
local function next_lane(ring)
  while true do
    local lane = ring.waiting[ring.head]
    if not lane and ring.loaded < ring.size then
      local page = call('ZRANGE', P .. 'ring:' .. ring.name, ring.loaded, ring.loaded + 99)
      for _, name in ipairs(page) do
        ring.waiting[#ring.waiting + 1] = {
          name = name, key = P .. 'q:' .. ring.name .. ':' .. name, names = limits and limited_names(name) or {},
          entries = {}, next = 1, from = '-', given = 0,
        }
      end
      ring.loaded = #page > 0 and ring.loaded + #page or ring.size
    elseif not lane and #ring.again > 0 then
      ring.waiting, ring.head, ring.again = ring.again, 1, {}
    elseif not lane then
      return nil
    elseif limits and not has_room(lane) then
      ring.head = ring.head + 1
    else
      local entry = peek(ring, lane)
      if entry then
        return lane, entry
      end
      ring.head = ring.head + 1
    end
  end
end

-- Takes the first entry of a lane; whose turn it is goes on.
local function pick(ring, lane, entry)
  if lane.given == 0 then
    ring.touched[#ring.touched + 1] = lane
  end
  lane.given, lane.last = lane.given + 1, entry[1]
  lane.next, ring.head, ring.given = lane.next + 1, ring.head + 1, ring.given + 1
  lane.turn = ring.given
  ring.again[#ring.again + 1] = lane
  for _, name in ipairs(lane.names) do
    limits[1][name] = limits[1][name] - 1
  end
  names[#names + 1] = entry[2][1] .. '/' .. entry[2][2]
  entries[#names], rings_of[#names] = entry[1], ring
end

-- Leases what was picked.
local function lease_all()
  local claimed, jobs, leases, leased_of = {}, {}, {}, {}
  local owned = ' l ' .. owner .. ' '
  local stored = read_all('jobs', names)
  for n, name in ipairs(names) do
    local fence, entry, deliveries, rest = string.match(stored[n] or '', '^(%d+) q (%S+) (%d+)( %d+ %l+ %l+ .*)$')
    if entry == entries[n] then
      fence = after(fence)
      local job = fence .. owned .. after(deliveries) .. rest
      jobs[#jobs + 1] = name
      jobs[#jobs + 1] = job
      leases[#leases + 1] = till
      leases[#leases + 1] = name .. '/' .. fence
      local queue = rings_of[n].queue
      leased_of[queue] = (leased_of[queue] or 0) + 1
      claimed[#claimed + 1] = name
      claimed[#claimed + 1] = entry
      claimed[#claimed + 1] = job
    elseif not entry and not read_job(stored[n] or '') then
      set_job_aside(name, 'where the job is cannot be read')
    end
  end
  call_with_all('HSET', P .. 'jobs', jobs)
  call_with_all('ZADD', P .. 'leases', leases)
  for queue, by in pairs(leased_of) do
    add('leased', queue, by)
  end
  return claimed
end

-- Lanes that gave jobs go behind the others, in the order of the last job that each gave; those without any left leave.
local function close_ring(ring)
  if ring.given == 0 then
    return
  end
  add('depth', ring.name, -ring.given)
  local turn = call('HINCRBY', P .. 'turns', ring.name, ring.given) - ring.given
  for _, lane in ipairs(ring.touched) do
    -- Jobs leave from the head of the stream: what is older than the next one is gone.
    local ms, number = string.match(lane.last, '^(%d+)-(%d+)$')
    call('XTRIM', lane.key, 'MINID', ms .. '-' .. string.format('%d', number + 1))
    if call('XLEN', lane.key) == 0 then
      call('DEL', lane.key)
      call('ZREM', P .. 'ring:' .. ring.name, lane.name)
    else
      call('ZADD', P .. 'ring:' .. ring.name, turn + lane.turn, lane.name)
    end
  end
end

local LOW_FIRST, NORMAL_FIRST = {'low', 'high', 'normal'}, {'normal', 'high', 'low'}
local function preference(made)
  return made % 16 == 15 and LOW_FIRST or made % 4 == 3 and NORMAL_FIRST or PRIORITIES
end

for i = 5, #ARGV do
  local queue = ARGV[i]
  if #names < most and not is_paused(queue) then
    local rings = {}
    for _, priority in ipairs(PRIORITIES) do
      rings[priority] = open_ring(queue, priority)
    end
    local before = tonumber(call('HGET', P .. 'turns', queue) or 0)
    local made = before
    local found = true
    while found and #names < most do
      found = false
      for _, priority in ipairs(preference(made)) do
        local lane, entry = next_lane(rings[priority])
        if lane then
          found = true
          pick(rings[priority], lane, entry)
          made = made + 1
          break
        end
      end
    end
    for _, priority in ipairs(PRIORITIES) do
      close_ring(rings[priority])
    end
    if made > before then
      call('HSET', P .. 'turns', queue, made)
    end
  end
end
local claimed = lease_all()
local more = {}
if #names == most then
  for i = 5, #ARGV do
    for _, priority in ipairs(PRIORITIES) do
      local line = ARGV[i] .. ':' .. priority
      local given = sums.depth and sums.depth[line] or 0
      if tonumber(call('HGET', P .. 'depth', line) or 0) + given > 0 then
        more[#more + 1] = ARGV[i]
        woken[ARGV[i]] = true
        break
      end
    end
  end
end
flush()
local records = {}
if #claimed > 0 and #claimed <= 24 then
  for i = 1, #claimed, 3 do
    local task = split(claimed[i])
    records[#records + 1] = call('HGET', P .. 'records', task) or ''
    records[#records + 1] = call('HGET', P .. 'texts', task) or ''
  end
end
return {string.format('%d', now), claimed, more, records}
