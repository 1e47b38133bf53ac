-- Write of a value of one of several keys, used after prelude.lua.

-- Replaces the value. Publishes the expiry of an expired one first. A value with a TTL of zero expires immediately.
local function put(record, shadow, load, key, value, ttl)
    local at = expire_if_due(key, shadow)
    local deadline = deadline_in(ttl)
    if has_expired(deadline) then
        redis.call('UNLINK', load)
        publish_event(key, event_value(value, record), deadline)
        redis.call('UNLINK', record)
        unindex(key, shadow)
    elseif deadline then
        -- First, here and below: a full server refuses it only before the other changes.
        redis.call('SET', record, value, 'PXAT', integer(deadline - 1))
        redis.call('UNLINK', load)
        index_value(key, shadow, value, deadline)
    else
        redis.call('SET', record, value)
        redis.call('UNLINK', load)
        if at then unindex(key, shadow) end
    end
    return deadline
end
