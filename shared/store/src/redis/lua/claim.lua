-- Claims jobs.
--
-- ARGV   owner, most jobs, lease in ms, then the queues in order
-- Result a list of {task, phase, queue, attempt, fence, deliveries, waited ms, record}

local owner, most, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function is_paused(queue)
  local pause = redis.call('HGET', P .. 'pauses', 'queue:' .. queue)
  if not pause then
    return false
  end
  local till = cjson.decode(pause)['until']
  return till == cjson.null or till > now
end

local function claim(task, phase, job)
  redis.call('HINCRBY', P .. 'depth', job[QUEUE] .. ':' .. job[PRIORITY], -1)
  job[PLACE], job[OWNER] = 'l', owner
  job[FENCE], job[DELIVERIES] = job[FENCE] + 1, job[DELIVERIES] + 1
  put_job(task, phase, job)
  redis.call('ZADD', P .. 'leases:' .. job[QUEUE], now + lease, task .. '/' .. phase)
  local record = redis.call('HGET', P .. 't:' .. task, 'r')
  return {task, phase, job[QUEUE], job[ATTEMPT], job[FENCE], job[DELIVERIES], now - job[SINCE], record or ''}
end

local claimed = {}
for i = 4, #ARGV do
  local queue = ARGV[i]
  for _, priority in ipairs(is_paused(queue) and {} or PRIORITIES) do
    local key = P .. 'q:' .. queue .. ':' .. priority
    while #claimed < most do
      local read = redis.call('XREADGROUP', 'GROUP', 'w', owner, 'COUNT', most - #claimed, 'STREAMS', key, '>')
      if not read then
        break
      end
      for _, entry in ipairs(read[1][2]) do
        local task, phase = entry[2][2], entry[2][4]
        local job = get_job(task, phase)
        if job and job[PLACE] == 'q' and job[ENTRY] == entry[1] then
          claimed[#claimed + 1] = claim(task, phase, job)
        else
          acknowledge_job(key, entry[1])
        end
      end
    end
    if #claimed == most then
      if tonumber(redis.call('HGET', P .. 'depth', queue .. ':' .. priority) or 0) > 0 then
        wake(queue)
      end
    end
  end
end
return claimed
