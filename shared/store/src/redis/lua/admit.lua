-- Lets a call to a provider through, or says why not.
--
-- ARGV   the four targets whose pauses hold for the call, of which the last two name its key; for how long, in ms, a call that
--        tries whether a pause is over has the provider to itself; then for each thing of which there is so much a minute:
--        its name, what the call costs of a minute's worth, in microseconds
-- Result {'granted', now in ms, the pauses that the call tries...}
--        {'paused', reason, its end in ms or the empty string}
--        {'probing', ms for which another call has the provider to itself}
--        {'spent', microseconds until it is worth to ask again}
--
-- Kept of the minutes is when a minute's worth will be there again.

local MINUTE = 60000000
local probe = tonumber(ARGV[5])
local tried, wait = {}, 0
for i = 1, 4 do
  local json = call('HGET', P .. 'pauses', ARGV[i])
  if json then
    local pause = cjson.decode(json)
    local ends = pause['until']
    if ends == cjson.null or ends > now then
      return {'paused', pause.reason, ends == cjson.null and '' or string.format('%d', ends)}
    end
    -- One that names no key ends with its time.
    if i > 2 then
      tried[#tried + 1] = ARGV[i]
      wait = math.max(wait, tonumber(call('HGET', P .. 'probes', ARGV[i]) or 0) - now)
    end
  end
end
if wait > 0 then
  return {'probing', wait}
end

local now_us = time[1] * 1000000 + time[2]
local kept = {}
for i = 6, #ARGV, 2 do
  local full_at = tonumber(call('HGET', P .. 'draws', ARGV[i]) or 0)
  full_at = math.max(full_at, now_us) + tonumber(ARGV[i + 1])
  wait = math.max(wait, full_at - now_us - MINUTE)
  kept[#kept + 1] = ARGV[i]
  kept[#kept + 1] = string.format('%d', full_at)
end
if wait > 0 then
  return {'spent', wait}
end
call_with_all('HSET', P .. 'draws', kept)
for _, target in ipairs(tried) do
  call('HSET', P .. 'probes', target, string.format('%d', now + probe))
end
return {'granted', now, unpack(tried)}
