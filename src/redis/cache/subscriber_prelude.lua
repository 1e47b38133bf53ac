-- What the scripts by which subscribers read begin with, after prelude.lua: what is due goes to the stream,
-- and what nobody needs leaves it. Changes nothing by itself.
--
-- KEYS[1]   the names of all groups, a set; then as in prelude.lua, of no key. What is due is not known before: the names
--           of its records and shadows are made here, and all are in the index' slot.
--
-- Both scripts that read return a table that begins with the time in milliseconds, entries of the stream, and 1 where
-- more may be had at once; and then what `told` is by now.

local groups = KEYS[1]

-- For so many milliseconds an entry is kept for those without a group, as nobody knows how far they have read.
-- What is older is kept for groups alone.
local MIN_AGE_MS = 60000

-- After so many bytes of values a script stops, as all others wait meanwhile.
local MAX_REPLY_BYTES = 1048576

-- Moves what is due to the stream, `most` at once; answers whether that was all. Whoever asks first does it for all
-- subscribers.
local function move_expired(most)
    local due = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.3f', now),
        'WITHSCORES', 'LIMIT', 0, most)
    local bytes, moved, shadows = 0, {}, {}
    for at = 1, #due, 2 do
        local key, deadline = due[at], tonumber(due[at + 1])
        local shadow = index .. '.value:' .. key
        local value = redis.pcall('GET', shadow)
        -- Not of what another program has put in its place: that lives, and has another deadline.
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

-- Adds entries to `entries` as `read(count)` gives them, up to `room`: few at first, as nobody knows how large they are,
-- until they are enough for one answer. Answers whether that was all.
local function gather(entries, limit, read)
    local count, bytes = 1, size_of(entries, 1)
    while #entries < limit and bytes < MAX_REPLY_BYTES do
        local from = #entries + 1
        count = math.min(count, limit - #entries)
        local is_all = read(count)
        local more = size_of(entries, from)
        bytes = bytes + more
        if is_all then return true end
        -- As many as fit, by those that came.
        local fit = math.floor((MAX_REPLY_BYTES - bytes) * (#entries - from + 1) / math.max(more, 1))
        count = math.max(1, math.min(4 * count, fit))
    end
    return false
end

local function extend(entries, more)
    for _, entry in ipairs(more) do entries[#entries + 1] = entry end
end

-- A reply of names and values as a table.
local function named(reply)
    local fields = {}
    for at = 1, #reply, 2 do fields[reply[at]] = reply[at + 1] end
    return fields
end

local function milliseconds(id)
    return tonumber(string.match(id, '^%d+'))
end

-- Takes from the stream what nobody needs any more: all that every group has acked, if it is not too new for
-- those who listen without a group.
local function trim()
    if redis.call('EXISTS', stream) == 0 then return end
    -- Those that left with an older stream need all of this one.
    for _, group in ipairs(redis.call('SMEMBERS', groups)) do
        redis.pcall('XGROUP', 'CREATE', stream, group, '0')
    end
    local oldest = math.max(0, now - MIN_AGE_MS)
    for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local group = named(reply)
        local first = group['last-delivered-id']
        -- The oldest that is delivered and not acked, or else the last that was delivered.
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
