-- Takes out an entry that is lent, where the claim is not void.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the key
-- ARGV[3]            the claim: the end of its lease
-- Returns 1 where it did, else 0.

local key = ARGV[2]
if not holds(key, ARGV[3]) then
  return 0
end
redis.call('ZREM', index, key)
redis.call('UNLINK', record_prefix .. key)
return 1
