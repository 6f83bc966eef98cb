-- Ends the pauses whose time was over when a call was let through that was answered.
--
-- ARGV   when it was let through, in ms; then the targets
-- Result the targets whose pauses were ended

local at, ended = tonumber(ARGV[1]), {}
for i = 2, #ARGV do
  local json = call('HGET', P .. 'pauses', ARGV[i])
  local ends = json and cjson.decode(json)['until']
  if ends and ends ~= cjson.null and ends <= at then
    call('HDEL', P .. 'pauses', ARGV[i])
    call('HDEL', P .. 'probes', ARGV[i])
    ended[#ended + 1] = ARGV[i]
  end
end
return ended
