-- Puts a value at a key, with a deadline, whatever is there. A claim on the entry is void then, and it begins anew.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- ARGV[4]         and what follows: the value, as `write` of the layout takes it
-- Returns the value that it replaced, or false.

local key, name = ARGV[2], KEYS[#KEYS]
local old = read(name)
clear_failures({ key })
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
write(name, 4)
return old
