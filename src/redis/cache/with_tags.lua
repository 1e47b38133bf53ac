-- Tags of a value that is about to be written, used after tags.lua.

-- Returns `value` with `count` tags, which are in ARGV from `first` on, and the keys of their versions in KEYS from
-- `first_key` on. A tag without a version gets `version`. It lives for at least `ttl` milliseconds, or forever.
local function with_tags(value, count, first, first_key, version, ttl)
    local parts = { TAGGED, struct.pack('<I4', count) }
    for nth = 0, count - 1 do
        local tag = ARGV[first + nth]
        -- A full server refuses this, and nothing was changed. `keep_tags` extends the TTL: a key without one would
        -- count as one with an infinite TTL.
        local current = redis.call('SET', KEYS[first_key + nth], version, 'PX', 1, 'NX', 'GET') or version
        parts[#parts + 1] = struct.pack('<I4', #tag) .. tag .. current
    end
    local tags = table.concat(parts)
    keep_tags(tags, KEYS[1], ttl)
    return tags .. value
end
