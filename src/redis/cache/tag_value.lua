-- Adds tags to the value that write.lua writes after this.
--
-- KEYS      those of write.lua; from the fourth on, before those of the shard, the keys of the versions of the tags
-- ARGV      those of write.lua, and in addition
-- ARGV[6]   the version of those tags that have none
-- ARGV[7]   and the following: the tags
-- Returns as write.lua.

-- For write.lua: no fast path has begun the write.
local last_ms

-- A value with a TTL of zero is not stored.
ARGV[3] = with_tags(ARGV[3], ARGV[4] == '0' and 0 or #ARGV - 6, 7, 4, ARGV[6], tonumber(ARGV[4]))
