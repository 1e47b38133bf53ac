-- Puts a value at a key where the live one is still what the caller has read; the TTL stays.
--
-- KEYS      as in prelude.lua, one record
-- ARGV[2]   the key
-- ARGV[3]   the value that must be there
-- ARGV[4]   the one that takes its place
-- Returns 1 and false where it did; else 0 and the live value that is there, or false.

local value, deadline = look(record, ARGV[2])
if not value or is_dead(deadline) then return { 0, false } end
if value ~= ARGV[3] then return { 0, value } end
redis.call('SET', record, ARGV[4], 'KEEPTTL')
return { 1, false }
