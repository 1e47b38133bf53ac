-- Second part of the scripts of subscribers, after prelude.lua: functions that move expired entries to the stream, read
-- it and trim it. Changes nothing by itself.
--
-- KEYS[1]   the set of the names of all groups; then as in prelude.lua, without keys. The expired keys are not known
--           beforehand: the names of their records and shadows are made here. They are in the slot of the index.
--
-- Both reading scripts return a table that begins with the time in milliseconds, entries of the stream, 1 if more can
-- be read immediately, and the stream's version.

-- The hash `counts` exists as soon as there was a subscriber: `events` is the number of all events since then, `id`
-- changes if the hash was lost. For each group, `read:` is the number of the last event that was delivered or missed,
-- `leased:` the number of leased events, and `missed:` the number of lost events that no subscriber has received. A part
-- of these is moved to `reporting:`, with the end and the id of a lease, while one of the subscribers receives it.

local groups, counts = KEYS[1], index .. '.counts'

-- First: a full server refuses commands that may need memory, unless the script has already called another one that
-- writes. Otherwise, each poll would send a script that fails to each shard. No such key exists.
redis.call('UNLINK', index .. '.none')

-- How long events are kept for broadcast subscribers, whose positions are unknown to the server. Older ones are kept
-- only for groups.
local MIN_AGE_MS = 60000

-- Number of value bytes after which a script stops, because the server executes nothing else in the meantime.
local MAX_REPLY_BYTES = 1048576

-- Number of index entries without an event that a script removes, for the same reason.
local MAX_LOST = 10000

-- How long the counts remain, in addition to the retention, if there is no group and no subscriber reads them. A
-- broadcast subscriber that does not poll for longer gets no number of missed events.
local KEEP_COUNTS_MS = 86400000

-- Lets the counts expire if there is no group, or else not. To be called after a change of `groups`.
local function keep_counts()
    if redis.call('EXISTS', groups) == 1 then
        redis.call('PERSIST', counts)
    else
        redis.call('PEXPIRE', counts, integer(retention + KEEP_COUNTS_MS))
    end
end

-- Returns the id of the counts, and creates them if there are none.
local function open_counts()
    local id = redis.call('HGET', counts, 'id')
    if not id then
        id = time[1] .. '.' .. time[2]
        redis.call('HSET', counts, 'id', id)
    end
    keep_counts()
    return id
end

local function read_count(field)
    return tonumber(redis.call('HGET', counts, field) or 0)
end

-- Moves at most `most` expired entries to the stream, for all subscribers; returns whether these were all. Entries whose
-- events are lost are removed first, many at once, so that a subscriber that returns soon gets current events.
local function move_expired(most)
    local is_all = drop_lost(MAX_LOST) < MAX_LOST
    local due = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.3f', now),
        'WITHSCORES', 'LIMIT', 0, most)
    local bytes, moved, shadows, has_events = 0, {}, {}, false
    for at = 1, #due, 2 do
        local key, deadline = due[at], tonumber(due[at + 1])
        local shadow = index .. '.value:' .. key
        local value = redis.pcall('GET', shadow)
        -- Skips a key at which another program has written since then: that value is live or has another deadline.
        local name = index .. ':' .. key
        local last = redis.call('PEXPIRETIME', name)
        if last == -2 or last == deadline - 1 then
            -- It may be present: see `expire_if_due`.
            shadows[#shadows + 1] = name
            if type(value) == 'string' then
                local event = event_value(value, shadow)
                if event then
                    append_event(key, event, deadline)
                    has_events = true
                end
                bytes = bytes + #value
            elseif not value then
                count_events(1)
            end
        end
        moved[#moved + 1], shadows[#shadows + 1] = key, shadow
        if bytes >= MAX_REPLY_BYTES then break end
    end
    if #moved > 0 then
        redis.call('ZREM', index, unpack(moved))
        redis.call('UNLINK', unpack(shadows))
        if has_events then bump_stream_version() end
    end
    local last_ms = redis.call('PEXPIRETIME', index)
    if last_ms >= 0 then
        set_hint(last_ms)
    elseif last_ms == -1 then
        set_index_expiry(NEVER_MS)
    else
        redis.call('DEL', earliest_deadline)
    end
    return is_all and #moved * 2 == #due and #moved < most
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
        count = more == 0 and 4 * count or math.max(1, math.min(4 * count, fit))
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

-- Returns the number of the event of an entry; 0 if an older release or a process before the first subscriber has added
-- it, without a number.
local function number_of(entry)
    return tonumber(named(entry[2])['number'] or 0)
end

-- Returns a function that counts the missed events before an entry, if `seen` is the number of the last event that was
-- read; without an entry, those up to the last event. It also returns the number of the last event then.
local function miss_counter(seen)
    local total = read_count('events')
    return function(entry)
        local number = entry and number_of(entry) or total
        -- Above the total: from before the counts were lost.
        if number <= seen or number > total then return 0, seen end
        local missed = number - seen - (entry and 1 or 0)
        seen = number
        return missed, seen
    end
end

-- Group that no subscriber reads. A stream without it is new: the old one has expired, with its groups.
local MARKER = 'fleeting:restored'

local function forget_group(group)
    redis.call('SREM', groups, group)
    keep_counts()
    redis.call('HDEL', counts, 'read:' .. group, 'leased:' .. group, 'missed:' .. group, 'reporting:' .. group)
end

-- Creates the groups of a new stream, which have read none of its events. On any other stream, a missing group was
-- destroyed by another program, and is forgotten.
local function restore_groups()
    local is_present = {}
    if redis.call('EXISTS', stream) == 1 then
        for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do is_present[named(reply)['name']] = true end
    end
    local names = redis.call('SMEMBERS', groups)
    if is_present[MARKER] then
        for _, group in ipairs(names) do
            if not is_present[group] then forget_group(group) end
        end
        return
    end
    -- At the last possible id, so that it never has anything to read.
    redis.call('XGROUP', 'CREATE', stream, MARKER, '18446744073709551615-18446744073709551615', 'MKSTREAM')
    keep_stream(retention)
    for _, group in ipairs(names) do
        if not is_present[group] then
            redis.call('XGROUP', 'CREATE', stream, group, '0')
            -- Subscribers keep the stream while they hold events, so those that held these have crashed.
            local leased = read_count('leased:' .. group)
            if leased > 0 then
                redis.call('HINCRBY', counts, 'missed:' .. group, leased)
                redis.call('HDEL', counts, 'leased:' .. group)
            end
        end
    end
end

-- Removes events from the stream that are older than the retention, or that are acked by all groups and are too old for
-- broadcast subscribers.
local function trim()
    if redis.call('EXISTS', stream) == 0 then return end
    restore_groups()
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
    redis.call('XTRIM', stream, 'MINID', '~', integer(math.max(oldest, now - retention)))
end

local function read_stream_version()
    return redis.call('GET', stream_version) or ''
end
