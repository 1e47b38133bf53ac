-- Ends a lease that the client has not received: the entry gets its former state again, unless the lease is void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the end of its lease
-- ARGV[4]         its former score
-- Returns nothing.

local key, number = ARGV[2], tonumber(ARGV[3])
local set = set_of_lease(key, number)
if set and redis.call('EXISTS', KEYS[#KEYS]) == 1 then
  if set == dead and is_claimed(ARGV[3]) then
    -- The lease was for the last attempt, which did not take place.
    redis.call('ZREM', dead, key)
    set = index
  end
  redis.call('ZADD', set, unleased(ARGV[4]), key)
end
