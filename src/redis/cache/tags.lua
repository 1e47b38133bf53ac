-- Tags of values; precedes the other files of a script. Changes nothing by itself.
--
-- A value with tags begins with `TAGGED` and the number of the tags (four bytes). Then come each tag (its length in four
-- bytes, and the tag) with its version (16 bytes), and the value itself. The version of a tag is a random text at the key
-- `index.tag:` with the tag. A value is live while the version of each of its tags is the one it was written with. So
-- deleting that key, which exists once per shard, removes all values with the tag. It expires when the last value with
-- the tag and its event do; an evicted one removes the values too.
--
-- A value without tags that begins with `TAGGED` by itself is stored with the number zero in front of it. KEYS does not
-- contain the keys of the versions, as only the value names them. They are in the slot of its record.

local TAGGED = '\193tag'

-- Calls `visit` with the key and the version of each tag of a value, until it returns false. Returns the offset of the
-- value itself; nil if it returned false.
local function each_tag(value, record, visit)
    if string.sub(value, 1, 4) ~= TAGGED then return 1 end
    local versions = string.match(record, '^[^}]*}') .. '.tag:'
    local count, at = struct.unpack('<I4', value, 5)
    for _ = 1, count do
        local tag, version
        tag, version, at = struct.unpack('<I4c0c16', value, at)
        if not visit(versions .. tag, version) then return nil end
    end
    return at
end

local function is_current(key, version)
    return redis.call('GET', key) == version
end

-- Returns a value as it is stored if it is live; otherwise, and if it is no string, false.
local function live(value, record)
    return type(value) == 'string' and each_tag(value, record, is_current) and value or false
end

-- Returns a live value without its tags; otherwise false.
local function bare(value, record)
    local at = type(value) == 'string' and each_tag(value, record, is_current)
    return at and string.sub(value, at) or false
end

-- Keeps the versions of the tags of a value for at least as long as the value: for `ttl` milliseconds, or for ever, and
-- then until its event is published, within the retention in ARGV[1].
local function keep_tags(value, record, ttl)
    local milliseconds = ttl and string.format('%d', ttl + (tonumber(ARGV[1]) or 0) + 1000)
    each_tag(value, record, function(key)
        if milliseconds then
            redis.call('PEXPIRE', key, milliseconds, 'GT')
        else
            redis.call('PERSIST', key)
        end
        return true
    end)
end
