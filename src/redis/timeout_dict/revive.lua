-- Makes a dead letter an entry with a deadline and without failures.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- Returns 1 if it did, else 0.

local key = ARGV[2]
local dead_at = dead_since(key)
-- A time in the future that ends a claim is the last attempt. Any other time belongs to a dead letter, which may be
-- hidden or leased for a take.
if not dead_at or dead_at > now and is_claimed(dead_at) or not exists(KEYS[#KEYS]) then
  return 0
end
clear_failures({ key })
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
return 1
