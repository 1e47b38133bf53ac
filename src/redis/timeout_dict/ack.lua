-- Removes a claimed entry, unless the claim is void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the claim: the end of its lease
-- Returns 1 if it did, else 0.

local key = ARGV[2]
if not set_of_lease(key, tonumber(ARGV[3])) or not exists(KEYS[#KEYS]) then
  return 0
end
redis.call('ZREM', index, key)
clear_failures({ key })
redis.call('UNLINK', KEYS[#KEYS])
return 1
