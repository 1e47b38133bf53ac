-- Tags of values; precedes the other files of a script. Changes nothing by itself.
--
-- A value with tags begins with `TAGGED` and the number of the tags (four bytes). Then come each tag (its length in four
-- bytes, and the tag) with its version (16 bytes), and the value itself. The version of a tag is a random text at the key
-- `index.tag:` with the tag. A value is live while the version of each of its tags is the one it was written with. So
-- deleting that key, which exists once per shard, removes all values with the tag. It expires when the last value with
-- the tag and its event do, and the last load that is to replace one; an evicted one removes the values too.
--
-- A value without tags that begins with `TAGGED` by itself is stored with the number zero in front of it. KEYS does not
-- contain the keys of the versions, as only the value names them. They are in the slot of its record.

local TAGGED = '\193tag'

-- Calls `visit` with the key and the version of each tag of a value, until it returns false. Returns the offset of the
-- value itself; nil if `visit` returned false. Anything else that begins with `TAGGED` has no tags.
local function each_tag(value, record, visit)
    if string.sub(value, 1, 4) ~= TAGGED or #value < 8 then return 1 end
    local versions = string.match(record, '^[^}]*}') .. '.tag:'
    local tags, at = {}, 9
    for nth = 1, struct.unpack('<I4', value, 5) do
        if at + 3 > #value then return 1 end
        local first = at + 4
        local last = first + struct.unpack('<I4', value, at) - 1
        at = last + 17
        if at - 1 > #value then return 1 end
        tags[nth] = { versions .. string.sub(value, first, last), string.sub(value, last + 1, at - 1) }
    end
    for _, tag in ipairs(tags) do
        if not visit(tag[1], tag[2]) then return nil end
    end
    return at
end

local function is_current(key, version)
    return redis.call('GET', key) == version
end

-- As `is_current`, but true if the version is on another node of a cluster, because the slot is being moved.
local function may_be_current(key, version)
    local current = redis.pcall('GET', key)
    return type(current) == 'table' or current == version
end

-- Returns a value as it is stored if it is live; otherwise, and if it is not a string, false.
local function live(value, record)
    return type(value) == 'string' and each_tag(value, record, is_current) and value or false
end

-- Returns a live value with zero tags, so that the caller need not check them again; otherwise false.
local function checked(value, record)
    local at = type(value) == 'string' and each_tag(value, record, is_current)
    if not at or at == 1 then return at and value end
    return TAGGED .. '\0\0\0\0' .. string.sub(value, at)
end

-- Returns the value of an event, which has no tags; false if one of them was removed, and there is no event.
local function event_value(value, record)
    local at = each_tag(value, record, may_be_current)
    return at and string.sub(value, at) or false
end

-- Keeps the versions of the tags of a value for at least this many milliseconds, or forever if it is nil.
local function keep_versions(value, record, milliseconds)
    each_tag(value, record, function(key)
        if milliseconds then
            redis.call('PEXPIRE', key, string.format('%d', milliseconds + 1000), 'GT')
        else
            redis.call('PERSIST', key)
        end
        return true
    end)
end

-- Keeps the versions of the tags of a value for at least as long as the value: for `ttl` milliseconds, or forever, and
-- then until its event is published, within the retention in ARGV[1].
local function keep_tags(value, record, ttl)
    keep_versions(value, record, ttl and ttl + (tonumber(ARGV[1]) or 0))
end
