-- Writes an entry with a deadline if its key has none.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- ARGV[4]         and the following: the value, as `write` of the layout takes it
-- Returns 1 if it did, else 0.

local key, name = ARGV[2], KEYS[#KEYS]
if exists(name) then
  return 0
end
-- First: a full server refuses it only before the other changes.
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
clear_failures({ key })
write(name, 4)
return 1
