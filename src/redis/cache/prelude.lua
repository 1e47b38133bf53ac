-- What every script of a cache begins with: the time, and the few ways to change a value and what tells of its end.
-- Changes nothing by itself.
--
-- KEYS      for each key that the script is about its record, its shadow and its load (lookup_lease.lua), which a write to the
--           key ends; then the index and the stream of their shard, and two notes: the soonest deadline of the index with
--           the time at which the index leaves, and what changes whenever the stream has news
-- ARGV[1]   for how many milliseconds an expiration waits for its subscribers; empty where there are none
--
-- A record is the value of a key, a string, which the server lets expire. Without subscribers there is nothing else.
-- With them, what has a deadline is also in the index, a sorted set of keys by deadline in milliseconds, and its value
-- once more in its shadow, until its end is told of or the retention is over: then both leave by themselves, as do the
-- stream, which has what was told, and the notes. A note may say less than is so, and never more: it is read often, so
-- that scripts need not be.

local record, shadow, load = KEYS[1], KEYS[2], KEYS[3]
local index, stream = KEYS[#KEYS - 3], KEYS[#KEYS - 2]
local earliest_deadline, stream_version = KEYS[#KEYS - 1], KEYS[#KEYS]
local retention = tonumber(ARGV[1])

-- In milliseconds, with a fraction: rounded, a value would die up to a millisecond too soon or too late.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- As a whole number, however large: Lua would write one of more than 14 digits with an exponent.
local function integer(number)
    return string.format('%d', number)
end

local function has_expired(deadline)
    return deadline ~= nil and now >= deadline
end

-- When what is put now dies; nil without a TTL. The server lets a key live in the millisecond that it names: so
-- does this, whether there are subscribers or not.
local function deadline_in(ttl)
    if not ttl then return nil end
    return math.floor(now) + (ttl == 0 and 0 or ttl + 1)
end

-- Lets who waits for the stream know that there is news.
local function bump_stream_version()
    redis.call('PEXPIRE', stream, integer(retention))
    redis.call('SET', stream_version, time[1] .. '.' .. time[2], 'PX', integer(retention))
end

-- Puts an expiration on the stream, for which somebody has to ring. What no subscriber came for within the retention
-- leaves it on the way, and the stream itself where nothing comes for as long.
local function append_event(key, value, deadline)
    local oldest = math.max(0, now - retention)
    redis.call('XADD', stream, 'MINID', '~', integer(oldest), '*',
        'key', key, 'value', value, 'deadline', integer(deadline))
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
    -- An index that comes again has no time to leave yet.
    if redis.call('EXISTS', index) == 0 then redis.call('DEL', earliest_deadline) end
end

-- The deadline that a shadow was put there for.
local function deadline_of(shadow)
    return redis.call('PEXPIRETIME', shadow) + 1 - retention
end

-- Lets the index live for as long as anything in it may be told of, and the note say no later deadline than this.
local function update_hint(deadline)
    local last = deadline - 1 + retention
    local first, last_ms = string.match(redis.call('GET', earliest_deadline) or '', '^(%d+) (%d+)$')
    if first and deadline >= tonumber(first) and last <= tonumber(last_ms) then return end
    -- An eighth more, so that most of the next need not move it.
    last_ms = integer(math.max(redis.call('PEXPIRETIME', index), last + math.floor(retention / 8)))
    redis.call('PEXPIREAT', index, last_ms)
    first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
    redis.call('SET', earliest_deadline, integer(first) .. ' ' .. last_ms, 'PXAT', last_ms)
end

-- The deadline of the live value of a key, as far as it is to be told of; and whether there was a dead one, of which
-- it has told then.
local function expire_if_due(key, shadow)
    local deadline = retention and tonumber(redis.call('ZSCORE', index, key) or nil)
    if not deadline or now < deadline then return deadline or nil, false end
    -- Before anything of a new value.
    local value = redis.call('GET', shadow)
    if value then publish_event(key, value, deadline) end
    unindex(key, shadow)
    return nil, true
end

-- Lets it be told when the value of a key dies.
local function index_value(key, shadow, value, deadline)
    if not retention then return end
    local last = integer(deadline - 1 + retention)
    -- Where only the deadline is another, the value is there.
    if value or redis.call('PEXPIREAT', shadow, last) == 0 then
        redis.call('SET', shadow, value or redis.call('GET', record), 'PXAT', last)
    end
    redis.call('ZADD', index, integer(deadline), key)
    update_hint(deadline)
end
