-- How a value is put, after prelude.lua: one of several keys, and whatever was there before.

-- Where a dead value was there that nobody was told of, it is told first. What is dead at once is told, and put nowhere.
local function put(record, shadow, load, key, value, ttl)
    local at = expire_if_due(key, shadow)
    local deadline = deadline_in(ttl)
    redis.call('UNLINK', load)
    if has_expired(deadline) then
        publish_event(key, value, deadline)
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
