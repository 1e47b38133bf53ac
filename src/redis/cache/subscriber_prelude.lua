-- What the two scripts by which subscribers read begin with, after prelude.lua: what is due goes to the stream,
-- and what nobody needs leaves it. Changes nothing by itself.
--
-- Both scripts return a table that begins with the time in milliseconds, entries of the stream, and 1 where
-- more may be had at once.

-- For so many milliseconds an entry is kept for those without a group, as nobody knows how far they have read.
-- What is older is kept for groups alone.
local KEEP = 60000

-- Moves what is due from its records to the stream, `most` at once; answers whether that was all. Whoever asks
-- first does it for all subscribers.
local function move_due(most)
    local due = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.3f', now),
        'WITHSCORES', 'LIMIT', 0, most)
    for at = 1, #due, 2 do
        local key = due[at]
        local record = index .. ':' .. key
        -- Not what another program put there.
        if redis.call('TYPE', record).ok == 'string' then
            tell(key, redis.call('GET', record), due[at + 1])
            redis.call('UNLINK', record)
        end
        redis.call('ZREM', index, key)
    end
    return #due < 2 * most
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
    local oldest = math.max(0, now - KEEP)
    if redis.call('EXISTS', stream) == 0 then return end
    for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local group = named(reply)
        local first = group['last-delivered-id']
        -- The oldest that is delivered and not acked, or else the last that was delivered.
        if group['pending'] > 0 then
            first = redis.call('XPENDING', stream, group['name'])[2]
        end
        oldest = math.min(oldest, milliseconds(first))
    end
    redis.call('XTRIM', stream, 'MINID', '~', whole(oldest))
end
