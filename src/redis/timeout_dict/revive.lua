-- Lets an entry that is dead be due again, as if it had never failed.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- Returns 1 where it did, else 0.

local key = ARGV[2]
local dead_at = dead_since(key)
-- One that is dead from some moment on is on its last lease; or is hidden, or about to be taken, but dead.
if not dead_at or dead_at > now and is_claimed(dead_at) or not exists(KEYS[#KEYS]) then
  return 0
end
clear_failures({ key })
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
return 1
