-- First part of all writing scripts of a cache: the time, and functions that change a value and publish its expiry.
-- Changes nothing by itself.
--
-- KEYS      for each key of the script, its record, its shadow and its load (lookup_lease.lua), which a write removes;
--           then the index and the stream of the shard; then two hints: the earliest deadline of the index with the
--           expiry of the index, and the version of the stream, which changes whenever events are added
-- ARGV[1]   for how many milliseconds an event is kept for its subscribers; empty without events
--
-- A record is the value of a key, a string that Redis expires. Without events there is nothing else. With events, a
-- value with a deadline is also in the index (a sorted set of keys by deadline in milliseconds), and a copy of the
-- value is in its shadow, because Redis deletes the record at the deadline. Both remain until the event is published.
-- If it is not published within the retention, it is lost: they expire, as do the stream and the hints. With groups of
-- subscribers, the index does not expire, so that lost events are counted. Hints are read often to save scripts. A hint
-- may be missing, or announce something too early, but never too late.

local record, shadow, load = KEYS[1], KEYS[2], KEYS[3]
local index, stream = KEYS[#KEYS - 3], KEYS[#KEYS - 2]
local earliest_deadline, stream_version = KEYS[#KEYS - 1], KEYS[#KEYS]
local retention = tonumber(ARGV[1])

-- Milliseconds with a fraction: a rounded time would make values expire up to a millisecond too early or too late.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- Formats an integer. Lua's own conversion uses an exponent above 14 digits.
local function integer(number)
    return string.format('%d', number)
end

local function has_expired(deadline)
    return deadline ~= nil and now >= deadline
end

-- Returns the deadline of a value written now; nil without a TTL. Redis keeps a key during the millisecond of its
-- expiry time, so the deadline is the next one; this is the same with and without events.
local function deadline_in(ttl)
    if not ttl then return nil end
    return math.floor(now) + (ttl == 0 and 0 or ttl + 1)
end

-- Lets the stream expire in `period` milliseconds, or later if it would otherwise.
local function keep_stream(period)
    if redis.call('PEXPIRE', stream, integer(period), 'GT') == 0 then
        redis.call('PEXPIRE', stream, integer(period), 'NX')
    end
end

-- Announces new events to the subscribers, which poll the version of the stream. Renews the expiry of the stream.
local function bump_stream_version()
    keep_stream(retention)
    redis.call('SET', stream_version, time[1] .. '.' .. time[2], 'PX', integer(retention))
end

-- Counts `more` events, which are added to the stream or lost. Returns the number of all events so far; nil if they are
-- not counted, since there was no subscriber yet. The name of the key is made here because few calls need it.
local function count_events(more)
    local counts = index .. '.counts'
    return redis.call('EXISTS', counts) == 1 and redis.call('HINCRBY', counts, 'events', more) or nil
end

-- Adds an event to the stream; the caller must call `bump_stream_version`. Trims events that are older than the
-- retention. An idle stream expires as a whole. Events are numbered, so that subscribers notice lost ones.
local function append_event(key, value, deadline)
    local oldest, number = math.max(0, now - retention), count_events(1)
    local fields = { 'key', key, 'value', value, 'deadline', integer(deadline) }
    if number then fields[7], fields[8] = 'number', integer(number) end
    redis.call('XADD', stream, 'MINID', '~', integer(oldest), '*', unpack(fields))
end

-- Removes at most `most` of the entries of the index that expired before the retention: their events are lost. Returns
-- their number.
local function drop_lost(most)
    local lost = redis.call('ZCOUNT', index, '-inf', string.format('%.3f', now - retention))
    lost = math.min(lost, most)
    if lost > 0 then
        redis.call('ZREMRANGEBYRANK', index, 0, lost - 1)
        count_events(lost)
    end
    return lost
end

local function publish_event(key, value, deadline)
    if not retention then return end
    append_event(key, value, deadline)
    bump_stream_version()
end

local function unindex(key, shadow)
    if not retention then return end
    redis.call('ZREM', index, key)
    redis.call('UNLINK', shadow)
    -- A later index starts without an expiry time, which the hint must not claim to have.
    if redis.call('EXISTS', index) == 0 then redis.call('DEL', earliest_deadline) end
end

-- Expiry time of an index that does not expire, with as many digits as other times have.
local NEVER_MS = 9999999999999

-- Sets the hint of an index that has entries and this expiry time.
local function set_hint(last_ms)
    local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
    redis.call('SET', earliest_deadline, integer(first) .. ' ' .. integer(last_ms), 'PXAT', integer(last_ms))
end

local function set_index_expiry(last_ms)
    redis.call('PEXPIREAT', index, integer(last_ms))
    set_hint(last_ms)
end

-- Returns the expiry time of an index with this latest deadline: an eighth of the retention later than needed, so that
-- most later writes need not extend it.
local function index_expiry(deadline)
    return deadline - 1 + retention + math.floor(retention / 8)
end

-- Extends the expiry of the index to the retention of this deadline, and moves the hint to this deadline if it is
-- earlier. Removes some entries whose events are lost: more than one, so that writes remove them faster than they add
-- others, and few, since each write is to be fast.
local function update_hint(deadline)
    local first, last_ms = string.match(redis.call('GET', earliest_deadline) or '', '^(%d+) (%d+)$')
    local has_lost = not first or now >= tonumber(first) + retention
    if not has_lost and deadline >= tonumber(first) and deadline - 1 + retention <= tonumber(last_ms) then return end
    if has_lost then drop_lost(16) end
    last_ms = NEVER_MS
    if redis.call('EXISTS', index .. '.groups') == 0 then
        last_ms = math.max(redis.call('PEXPIRETIME', index), index_expiry(deadline))
    end
    set_index_expiry(last_ms)
end

-- Publishes the expiry of the value in a shadow, or counts it as lost if the shadow is missing.
local function publish_shadow(key, shadow, deadline)
    local stored = redis.call('GET', shadow)
    if not stored then count_events(1) end
    local value = stored and event_value(stored, shadow)
    if value then publish_event(key, value, deadline) end
end

-- Publishes the expiry of the value of a key if it has expired but was not published. Returns the deadline of a live
-- value, nil if it is not in the index; and whether there was an expired value.
--
-- The server compares a deadline with the time at which the script began, or with that of an earlier command. So it may
-- have deleted a value that is not due, if its clock has jumped back since then. And it may still have a value that is
-- due: this is removed, or it would be live again after such a jump, after its expiry was published.
local function expire_if_due(key, shadow)
    local deadline = retention and tonumber(redis.call('ZSCORE', index, key) or nil)
    if not deadline then return nil, false end
    local name = index .. ':' .. key
    local last = redis.call('PEXPIRETIME', name)
    if now < deadline and last ~= -2 then return deadline, false end
    -- The event of the old value precedes all events of a new one.
    publish_shadow(key, shadow, deadline)
    unindex(key, shadow)
    if last == deadline - 1 then redis.call('UNLINK', name) end
    return nil, true
end

-- Adds the value of a key to the index, so that its expiry is published.
local function index_value(key, shadow, value, deadline)
    if not retention then return end
    local last = integer(deadline - 1 + retention)
    -- If only the deadline changes (`value` is false), the shadow already has the value.
    if value or redis.call('PEXPIREAT', shadow, last) == 0 then
        redis.call('SET', shadow, value or redis.call('GET', record), 'PXAT', last)
    end
    redis.call('ZADD', index, integer(deadline), key)
    update_hint(deadline)
end
