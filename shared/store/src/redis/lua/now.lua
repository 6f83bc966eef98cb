-- The server's time.
--
-- ARGV   none
-- Result ms since 1970

return now
