-- Puts a value at a key, with a TTL. Where a dead value was there that nobody was told of, it is told first.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   its new value
-- ARGV[4]   the TTL in milliseconds; empty for none
-- ARGV[5]   SET; LONG (the same of what lives for so long that whoever loads the key finds it, and no load need be ended);
--           NX (only where no live value is) or KEEPTTL (the TTL is for a value that replaces none)
-- Returns the live value that it replaced, or false; of NX, 1 where it was put, else 0.

local key, value, ttl, how = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- What write_fast_path.lua has not ended.
if till then
    local dead = not replaced and was_known and redis.call('GET', shadow)
    local died = dead and deadline_of(shadow)
    redis.call('SET', shadow, value, 'PXAT', whole(till + retention))
    note(till + 1)
    if dead then tell(key, dead, died) end
    return replaced
end

local at, was_dead = settle(key, shadow)
if how == 'NX' or how == 'KEEPTTL' then
    local old = not was_dead and redis.call('GET', record)
    if old and how == 'NX' then return 0 end
    if old then
        redis.call('UNLINK', load)
        redis.call('SET', record, value, 'KEEPTTL')
        if at then shelve(key, shadow, value, at) end
        return old
    end
end
local deadline, old = after(ttl), nil
redis.call('UNLINK', load)
if is_dead(deadline) then
    old = redis.call('GET', record)
    tell(key, value, deadline)
    redis.call('UNLINK', record)
    forget(key, shadow)
elseif deadline then
    old = redis.call('SET', record, value, 'PXAT', whole(deadline - 1), 'GET')
    shelve(key, shadow, value, deadline)
else
    old = redis.call('SET', record, value, 'GET')
    if at then forget(key, shadow) end
end
if how == 'NX' then return 1 end
return not was_dead and old or false
