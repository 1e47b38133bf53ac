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
local count = ARGV[4] == '0' and 0 or #ARGV - 6
local parts = { TAGGED, struct.pack('<I4', count) }
for nth = 1, count do
    local tag = ARGV[6 + nth]
    -- A full server refuses this, and nothing was changed. `keep_tags` extends the TTL: a key without one would count as
    -- one with an infinite TTL.
    local version = redis.call('SET', KEYS[3 + nth], ARGV[6], 'PX', 1, 'NX', 'GET') or ARGV[6]
    parts[#parts + 1] = struct.pack('<I4', #tag) .. tag .. version
end
local tags = table.concat(parts)
keep_tags(tags, KEYS[1], tonumber(ARGV[4]))
ARGV[3] = tags .. ARGV[3]
