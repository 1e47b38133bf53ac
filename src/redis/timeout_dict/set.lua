-- Writes an entry with a deadline, without failures. A claim on the replaced entry becomes void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- ARGV[4]         and the following: the value, as `write` of the layout takes it
-- Returns the value that it replaced, or false.

local key, name = ARGV[2], KEYS[#KEYS]
local old = read(name)
-- First: a full server refuses it only before the other changes.
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
clear_failures({ key })
write(name, 4)
return old
