-- Commits transitions of tasks that are there, each whole or not at all. No task stands in a call twice.
--
-- ARGV   token of this call, how many lines the event log gets, those lines (`write_log`), kinds (MessagePack, below), then
--        for each transition: task, record, receipt of the outcome or the empty string
--        A kind is what many transitions of a call have in common:
--        their places in the call, version, state, is final, tail (what its head ends with after the token), guard phase or the empty
--        string, guard fence, phases to look at (the guard's first), jobs {phase, put, delay ms, rest, queue, priority,
--        lane}, deltas {key, by}
-- Result for each: a applied, r applied by the first try of this call, s stale, c conflict, m not here

local token, kinds = ARGV[1], cmsgpack.unpack(ARGV[4])
local tasks, names = {}, {}
for i = 5, #ARGV, 3 do
  tasks[#tasks + 1] = ARGV[i]
end
for _, kind in ipairs(kinds) do
  for _, place in ipairs(kind[1]) do
    for _, phase in ipairs(kind[8]) do
      names[#names + 1] = tasks[place] .. '/' .. phase
    end
  end
end
local heads, stored = read_all('heads', tasks), read_all('jobs', names)
local results, records, new_heads, jobs, gone = {}, {}, {}, {}, {}

-- Takes a phase's job out of wherever it is.
local function remove(name, job)
  local fence, place, who, _, rest = read_job(job)
  if place then
    take_out(name, fence, place, who, rest)
  end
end

-- A task in a final state keeps no jobs. The one that was reported is nowhere.
local function forget_jobs(kind, from)
  local has_guard = kind[6] ~= ''
  for n = 1, #kind[8] do
    local name, job = names[from + n], stored[from + n]
    if job then
      if n > 1 or not has_guard then
        remove(name, job)
      end
      gone[#gone + 1] = name
    end
  end
end

-- Changes the jobs of a task. Each whose phase is looked at raises its fence.
local function change_jobs(kind, task, from)
  local has_guard = kind[6] ~= ''
  for n = 1, #kind[8] do
    local name, job, change = names[from + n], stored[from + n], kind.changes[n]
    local is_put = change and change[2]
    if job or is_put then
      if job and (n > 1 or not has_guard) then
        remove(name, job)
      end
      local fence = job and after(string.match(job, '^%d+') or '0') or '1'
      jobs[#jobs + 1] = name
      jobs[#jobs + 1] = is_put and put_job(name, task, change, fence) or fence .. ' n'
    end
  end
end

local looked, applied_to = 0, 0
for _, kind in ipairs(kinds) do
  local places, version, state, is_final, tail, phase, guard, phases, changes, deltas = unpack(kind)
  local expected, guarded = ' ' .. version .. ' ', phase ~= '' and guard .. ' '
  local after_number = ' ' .. state .. ' ' .. version + 1 .. ' ' .. token .. ' ' .. tail
  kind.changes = {}
  for _, change in ipairs(changes) do
    for n, name in ipairs(phases) do
      if name == change[1] then
        kind.changes[n] = change
      end
    end
  end
  local applied = 0
  for _, place in ipairs(places) do
    local task, head, receipt = tasks[place], heads[place], ARGV[3 * place + 4]
    local number = head and string.sub(head, 1, 16)
    local before = head and string.match(head, '^%l+', 18)
    local result = 'a'
    if head and head == number .. after_number then
      -- The same call again: the answer to its first try was lost on the way.
      result = 'r'
    elseif guarded and string.sub(stored[looked + 1] or '', 1, #guarded) ~= guarded then
      drop_stale(receipt)
      result = 's'
    elseif not head then
      result = 'm'
    elseif not before then
      -- Nobody can decide on it again: what it was decided for is kept for an operator.
      if receipt ~= '' then
        set_outcome_aside(call('XRANGE', P .. 'outcomes', receipt, receipt)[1], task, phase, 'the head of its task cannot be read')
      end
      result = 's'
    elseif string.sub(head, 18 + #before, 17 + #before + #expected) ~= expected then
      result = 'c'
    else
      applied, applied_to = applied + 1, applied_to + 2
      records[applied_to - 1], records[applied_to] = task, ARGV[3 * place + 3]
      new_heads[applied_to - 1], new_heads[applied_to] = task, number .. after_number
      if before ~= state then
        score('idx:' .. before, task, false)
        score('idx:' .. state, task, number)
      end
      if state == 'escalated' then
        score('escalated', task, now)
      elseif before == 'escalated' then
        score('escalated', task, false)
      end
      if is_final then
        forget_jobs(kind, looked)
      else
        change_jobs(kind, task, looked)
      end
      if receipt ~= '' then
        acknowledged[#acknowledged + 1] = receipt
      end
    end
    results[place] = result
    looked = looked + #phases
  end
  for _, delta in ipairs(deltas) do
    count(delta[1], delta[2] * applied)
  end
end
call_with_all('HSET', P .. 'records', records)
call_with_all('HSET', P .. 'heads', new_heads)
call_with_all('HSET', P .. 'jobs', jobs)
call_with_all('HDEL', P .. 'jobs', gone)
write_log(results, ARGV[2], ARGV[3])
flush()
return results
