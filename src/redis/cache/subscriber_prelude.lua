-- Second part of the scripts of subscribers, after prelude.lua: functions that move expired entries to the stream, read
-- it and trim it. Changes nothing by itself.
--
-- KEYS[1]   the set of the names of all groups; then as in prelude.lua, without keys. The expired keys are not known
--           beforehand: the names of their records and shadows are made here. They are in the slot of the index.
--
-- Both reading scripts return a table that begins with the time in milliseconds, entries of the stream, 1 if more can
-- be read immediately, and the stream's version.

local groups = KEYS[1]

-- How long events are kept for broadcast subscribers, whose positions are unknown to the server. Older ones are kept
-- only for groups.
local MIN_AGE_MS = 60000

-- Number of value bytes after which a script stops, because the server executes nothing else in the meantime.
local MAX_REPLY_BYTES = 1048576

-- Moves at most `most` expired entries to the stream, for all subscribers; returns whether these were all.
local function move_expired(most)
    local due = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.3f', now),
        'WITHSCORES', 'LIMIT', 0, most)
    local bytes, moved, shadows = 0, {}, {}
    for at = 1, #due, 2 do
        local key, deadline = due[at], tonumber(due[at + 1])
        local shadow = index .. '.value:' .. key
        local value = redis.pcall('GET', shadow)
        -- Skips a key at which another program has written since then: that value is live or has another deadline.
        local last = redis.call('PEXPIRETIME', index .. ':' .. key)
        if type(value) == 'string' and (last == -2 or last == deadline - 1) then
            append_event(key, value, deadline)
            bytes = bytes + #value
        end
        moved[#moved + 1], shadows[#shadows + 1] = key, shadow
        if bytes >= MAX_REPLY_BYTES then break end
    end
    if #moved > 0 then
        redis.call('ZREM', index, unpack(moved))
        redis.call('UNLINK', unpack(shadows))
        if bytes > 0 then bump_stream_version() end
    end
    local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
    if first then
        local last_ms = integer(redis.call('PEXPIRETIME', index))
        redis.call('SET', earliest_deadline, integer(first) .. ' ' .. last_ms, 'PXAT', last_ms)
    else
        redis.call('DEL', earliest_deadline)
    end
    return #moved * 2 == #due and #moved < most
end

local function size_of(entries, from)
    local bytes = 0
    for at = from, #entries do
        for _, field in ipairs(entries[at][2] or {}) do bytes = bytes + #field end
    end
    return bytes
end

-- Adds up to `limit` entries to `entries` by `read(count)`, until the reply reaches its maximum size. Their sizes are
-- not known beforehand, so it begins with few. Returns whether these were all.
local function gather(entries, limit, read)
    local count, bytes = 1, size_of(entries, 1)
    while #entries < limit and bytes < MAX_REPLY_BYTES do
        local from = #entries + 1
        count = math.min(count, limit - #entries)
        local is_all = read(count)
        local more = size_of(entries, from)
        bytes = bytes + more
        if is_all then return true end
        -- As many as fit, estimated by the entries of the last read.
        local fit = math.floor((MAX_REPLY_BYTES - bytes) * (#entries - from + 1) / math.max(more, 1))
        count = math.max(1, math.min(4 * count, fit))
    end
    return false
end

local function extend(entries, more)
    for _, entry in ipairs(more) do entries[#entries + 1] = entry end
end

-- Converts a reply of names and values in turn to a table.
local function named(reply)
    local fields = {}
    for at = 1, #reply, 2 do fields[reply[at]] = reply[at + 1] end
    return fields
end

local function milliseconds(id)
    return tonumber(string.match(id, '^%d+'))
end

-- Removes events from the stream that are acked by all groups and are too old for broadcast subscribers.
local function trim()
    if redis.call('EXISTS', stream) == 0 then return end
    -- Groups of an expired stream have not read any event of this one.
    for _, group in ipairs(redis.call('SMEMBERS', groups)) do
        redis.pcall('XGROUP', 'CREATE', stream, group, '0')
    end
    local oldest = math.max(0, now - MIN_AGE_MS)
    for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local group = named(reply)
        local first = group['last-delivered-id']
        -- The oldest event that is pending, or else the last that was delivered.
        if group['pending'] > 0 then
            first = redis.call('XPENDING', stream, group['name'])[2]
        end
        oldest = math.min(oldest, milliseconds(first))
    end
    redis.call('XTRIM', stream, 'MINID', '~', integer(oldest))
end

local function read_stream_version()
    return redis.call('GET', stream_version) or ''
end
