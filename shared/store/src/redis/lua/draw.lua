-- Takes of what there is only so much a minute, all or nothing.
--
-- ARGV   for each: name, what the amount costs of a minute's worth, in microseconds
-- Result microseconds until it is worth to ask again; 0 where it was taken
--
-- Kept is when a minute's worth will be there again.

local MINUTE = 60000000
local now_us = time[1] * 1000000 + time[2]
local wait, kept = 0, {}
for i = 1, #ARGV, 2 do
  local full_at = tonumber(call('HGET', P .. 'draws', ARGV[i]) or 0)
  full_at = math.max(full_at, now_us) + tonumber(ARGV[i + 1])
  wait = math.max(wait, full_at - now_us - MINUTE)
  kept[#kept + 1] = ARGV[i]
  kept[#kept + 1] = string.format('%d', full_at)
end
if wait == 0 then
  call_with_all('HSET', P .. 'draws', kept)
end
return wait
