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
if last_ms then
    local expired_value = not replaced and was_known and redis.call('GET', shadow)
    local expired_at = expired_value and deadline_of(shadow)
    redis.call('SET', shadow, value, 'PXAT', integer(last_ms + retention))
    update_hint(last_ms + 1)
    if expired_value then publish_event(key, expired_value, expired_at) end
    return replaced
end

local at, had_expired = expire_if_due(key, shadow)
if how == 'NX' or how == 'KEEPTTL' then
    local old = not had_expired and redis.call('GET', record)
    if old and how == 'NX' then return 0 end
    if old then
        redis.call('UNLINK', load)
        redis.call('SET', record, value, 'KEEPTTL')
        if at then index_value(key, shadow, value, at) end
        return old
    end
end
local deadline, old = deadline_in(ttl), nil
redis.call('UNLINK', load)
if has_expired(deadline) then
    old = redis.call('GET', record)
    publish_event(key, value, deadline)
    redis.call('UNLINK', record)
    unindex(key, shadow)
elseif deadline then
    old = redis.call('SET', record, value, 'PXAT', integer(deadline - 1), 'GET')
    index_value(key, shadow, value, deadline)
else
    old = redis.call('SET', record, value, 'GET')
    if at then unindex(key, shadow) end
end
if how == 'NX' then return 1 end
return not had_expired and old or false
