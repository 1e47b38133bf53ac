-- Puts a value at a key where the live one is still what the caller has read; the TTL stays.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   the value that must be there
-- ARGV[4]   the one that takes its place
-- Returns 1 and false where it did; else 0 and the live value that is there, or false.

local at, had_expired = expire_if_due(ARGV[2], shadow)
local value = not had_expired and redis.call('GET', record)
if value ~= ARGV[3] then return { 0, value } end
redis.call('SET', record, ARGV[4], 'KEEPTTL')
redis.call('UNLINK', load)
if at then index_value(ARGV[2], shadow, ARGV[4], at) end
return { 1, false }
