-- Writes a value at a key, with a TTL. Publishes the expiry of an expired value first.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   the value
-- ARGV[4]   its TTL in milliseconds; empty for none
-- ARGV[5]   SET; LONG (as SET, for a TTL so long that a load in progress finds the value and need not be invalidated);
--           NX (only if there is no live value); or KEEPTTL (the TTL is for a key without a live value)
-- Returns the value that it replaced, or false; for NX, 1 if it was written, else 0. Its tags may have been removed.

local key, value, ttl, how = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- The rest of a write that write_fast_path.lua has begun.
if last_ms then
    if has_expired_value then
        -- Another process may have written the shadow with another retention: only the index has the deadline.
        local deadline = tonumber(redis.call('ZSCORE', index, key))
        local expired_value = redis.call('GET', shadow)
        redis.call('ZADD', index, integer(last_ms + 1), key)
        redis.call('SET', shadow, value, 'PXAT', integer(last_ms + retention))
        if not expired_value then count_events(1) end
        local event = expired_value and event_value(expired_value, shadow)
        if event then publish_event(key, event, deadline) end
    end
    update_hint(last_ms + 1)
    return replaced
end

local at, had_expired = expire_if_due(key, shadow)
if how == 'NX' or how == 'KEEPTTL' then
    local old = not had_expired and live(redis.call('GET', record), record)
    if old and how == 'NX' then return 0 end
    if old then
        -- First, here and below: a full server refuses it only before the other changes.
        redis.call('SET', record, value, 'KEEPTTL')
        redis.call('UNLINK', load)
        if at then index_value(key, shadow, value, at) end
        return checked(old, record)
    end
end
local deadline, old = deadline_in(ttl), nil
if has_expired(deadline) then
    redis.call('UNLINK', load)
    old = redis.call('GET', record)
    publish_event(key, event_value(value, record), deadline)
    redis.call('UNLINK', record)
    unindex(key, shadow)
elseif deadline then
    old = redis.call('SET', record, value, 'PXAT', integer(deadline - 1), 'GET')
    redis.call('UNLINK', load)
    index_value(key, shadow, value, deadline)
else
    old = redis.call('SET', record, value, 'GET')
    redis.call('UNLINK', load)
    if at then unindex(key, shadow) end
end
if how == 'NX' then return 1 end
return not had_expired and checked(old, record)
