-- What every script of a cache begins with.
--
-- KEYS: records, where the script is about some; then the index and the stream of their shard.
-- ARGV[1]: for how many milliseconds an expiration waits for its subscribers; empty where there are none.
--
-- With subscribers a record outlives its deadline, which is its score in the index, until it was told of. So
-- does the index, for as long as anything in it might.

local record, index, stream = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local retention = tonumber(ARGV[1])

-- In milliseconds, with a fraction.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- As a whole number, however large.
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

-- Puts an expiration on the stream.
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
        redis.call('PEXPIREAT', record, last)
        if retention then
            redis.call('ZADD', index, whole(deadline), key)
            if redis.call('PEXPIREAT', index, last, 'NX') == 0 then
                redis.call('PEXPIREAT', index, last, 'GT')
            end
        end
    else
        redis.call('PERSIST', record)
        forget(key)
    end
end
