-- Adds tags to the value that write.lua writes after this.
--
-- KEYS, ARGV and the return value are those of write.lua, and in addition
-- ARGV[6]   the version of those tags that have none
-- ARGV[7]   and the following: the tags

-- For write.lua: no fast path has begun the write.
local last_ms

-- A value with a TTL of zero is not stored.
if ARGV[4] ~= '0' then
    local parts = { TAGGED, struct.pack('<I4', #ARGV - 6) }
    local versions = string.match(KEYS[1], '^[^}]*}') .. '.tag:'
    for at = 7, #ARGV do
        local tag = ARGV[at]
        local version = redis.call('GET', versions .. tag)
        if not version then
            version = ARGV[6]
            -- Without `GT`, since a key without a TTL counts as one with an infinite TTL.
            redis.call('SET', versions .. tag, version, 'PX', 1)
        end
        parts[#parts + 1] = struct.pack('<I4', #tag) .. tag .. version
    end
    local tags = table.concat(parts)
    keep_tags(tags, KEYS[1], tonumber(ARGV[4]))
    ARGV[3] = tags .. ARGV[3]
end
