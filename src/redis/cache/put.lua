-- Write of a value of one of several keys, used after prelude.lua.

-- Replaces the value. Publishes the expiry of an expired one first. A value with a TTL of zero expires immediately.
local function put(record, shadow, load, key, value, ttl)
    local at = expire_if_due(key, shadow)
    local deadline = deadline_in(ttl)
    redis.call('UNLINK', load)
    if has_expired(deadline) then
        publish_event(key, event_value(value, record), deadline)
        redis.call('UNLINK', record)
        unindex(key, shadow)
    elseif deadline then
        redis.call('SET', record, value, 'PXAT', integer(deadline - 1))
        index_value(key, shadow, value, deadline)
    else
        redis.call('SET', record, value)
        if at then unindex(key, shadow) end
    end
    return deadline
end
