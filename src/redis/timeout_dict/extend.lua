-- Changes the end of a lease, unless the claim is void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the claim: the end of its lease
-- ARGV[4]         the new lease in microseconds from now
-- Returns the new end, which identifies the claim from now on; or false.

local key = ARGV[2]
local set = set_of_lease(key, tonumber(ARGV[3]))
if not set or not exists(KEYS[#KEYS]) then
  return false
end
allow_full_server()
local lease_end = lease_end_in(ARGV[4], CLAIM)
redis.call('ZADD', set, score(lease_end), key)
return lease_end
