-- Ends a lease as if the entry had not been delivered: it gets its former state again, unless the lease is void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the end of its lease
-- ARGV[4]         its former score
-- Returns 1 if the lease was not void, else 0.

local key, number = ARGV[2], tonumber(ARGV[3])
local set = set_of_lease(key, number)
if not set or redis.call('EXISTS', KEYS[#KEYS]) == 0 then
  return 0
end
allow_full_server()
if set == dead and is_claimed(ARGV[3]) then
  -- The lease was for the last attempt, which did not take place.
  redis.call('ZREM', dead, key)
  set = index
end
redis.call('ZADD', set, unleased(ARGV[4], now), key)
return 1
