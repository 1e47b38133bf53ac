-- Replaces the live value of a key if it is still what the caller has read, and keeps the TTL.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   the expected value
-- ARGV[4]   the new value
-- Returns 1 and false if it was replaced; else 0 and the live value, or false.

local at, had_expired = expire_if_due(ARGV[2], shadow)
local value = not had_expired and live(redis.call('GET', record), record)
if value ~= ARGV[3] then return { 0, value } end
redis.call('SET', record, ARGV[4], 'KEEPTTL')
redis.call('UNLINK', load)
if at then index_value(ARGV[2], shadow, ARGV[4], at) end
return { 1, false }
