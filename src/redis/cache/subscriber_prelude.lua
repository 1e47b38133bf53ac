-- What the scripts of subscribers begin with, after prelude.lua. All of them end with a table: the time, what
-- is new, and whether more may be had at once.

-- What no process has read for so long is kept for groups alone.
local KEEP = 60000

-- Moves what is due from its records to the stream; answers whether that was all.
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

-- Takes from the stream what nobody needs any more: all that every group has acked, if it is not too new.
local function trim()
    local oldest = math.max(0, now - KEEP)
    if redis.call('EXISTS', stream) == 0 then return end
    for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local group = named(reply)
        local first = group['last-delivered-id']
        if group['pending'] > 0 then
            first = redis.call('XPENDING', stream, group['name'])[2]
        end
        oldest = math.min(oldest, milliseconds(first))
    end
    redis.call('XTRIM', stream, 'MINID', '~', whole(oldest))
end
