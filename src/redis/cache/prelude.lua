-- What every script of a cache begins with: the time, and the few ways to look at a record and to change it.
-- Changes nothing by itself.
--
-- KEYS      records, where the script is about some; then the index and the stream of their shard
-- ARGV[1]   for how many milliseconds an expiration waits for its subscribers; empty where there are none
--
-- A record is the value of a key, a string. The index is a sorted set of keys by deadline, in milliseconds; the
-- stream has the expirations that were told. Without subscribers there is neither, and the server lets records
-- leave. With them a record outlives its deadline, which is its score in the index, until it was told of. So
-- does the index, for as long as anything in it might.

local record, index, stream = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local retention = tonumber(ARGV[1])

-- In milliseconds, with a fraction: rounded, a value would die up to a millisecond too soon or too late.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- As a whole number, however large: Lua would write one of more than 14 digits with an exponent.
local function whole(number)
    return string.format('%.0f', number)
end

local function is_dead(deadline)
    return deadline ~= nil and now >= deadline
end

-- When what is put now dies; nil without a TTL.
local function after(ttl)
    if not ttl then return nil end
    return ttl == 0 and math.floor(now) or math.ceil(now + ttl)
end

-- The value of a key and its deadline, which may have passed.
local function look(record, key)
    local value = redis.call('GET', record)
    if not value then return nil end
    local score = retention and redis.call('ZSCORE', index, key)
    if score then return value, tonumber(score) end
    -- Redis lets a key live in the millisecond that it names, and die in the next one.
    local last = redis.call('PEXPIRETIME', record)
    if last < 0 then return value end
    return value, last + 1 - (retention or 0)
end

-- Puts an expiration on the stream. What no subscriber came for within the retention leaves it on the way, and
-- the stream itself where nothing comes for as long.
local function tell(key, value, deadline)
    if not retention then return end
    local oldest = math.max(0, now - retention)
    redis.call('XADD', stream, 'MINID', '~', whole(oldest), '*',
        'key', key, 'value', value, 'deadline', whole(deadline))
    redis.call('PEXPIRE', stream, whole(retention))
end

local function forget(key)
    if retention then redis.call('ZREM', index, key) end
end

local function drop(record, key)
    redis.call('UNLINK', record)
    forget(key)
end

-- Lets what is under a record live until its deadline, or for ever without one.
local function keep(record, key, value, deadline)
    if is_dead(deadline) then
        tell(key, value, deadline)
        drop(record, key)
    elseif deadline then
        local last = whole(deadline - 1 + (retention or 0))
        -- The server's own expiry comes after the retention: until then subscribers find it dead here.
        redis.call('PEXPIREAT', record, last)
        if retention then
            redis.call('ZADD', index, whole(deadline), key)
            -- To a key without expiry GT does nothing, as none is later than any.
            if redis.call('PEXPIREAT', index, last, 'NX') == 0 then
                redis.call('PEXPIREAT', index, last, 'GT')
            end
        end
    else
        redis.call('PERSIST', record)
        forget(key)
    end
end
