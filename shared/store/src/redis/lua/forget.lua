-- Forgets consumers of outcomes. One that has outcomes in its hands stays: deleting it would lose them.
--
-- ARGV   their names
-- Result those that stay

local staying = {}
for _, consumer in ipairs(ARGV) do
  if #call('XPENDING', P .. 'outcomes', 'c', '-', '+', 1, consumer) == 0 then
    call('XGROUP', 'DELCONSUMER', P .. 'outcomes', 'c', consumer)
  else
    staying[#staying + 1] = consumer
  end
end
return staying
