-- How a value is put, after prelude.lua: one of several keys, and whatever was there before.

-- Where a dead value was there that nobody was told of, it is told first. What is dead at once is told, and put nowhere.
local function put(record, shadow, load, key, value, ttl)
    local at = settle(key, shadow)
    local deadline = after(ttl)
    redis.call('UNLINK', load)
    if is_dead(deadline) then
        tell(key, value, deadline)
        redis.call('UNLINK', record)
        forget(key, shadow)
    elseif deadline then
        redis.call('SET', record, value, 'PXAT', whole(deadline - 1))
        shelve(key, shadow, value, deadline)
    else
        redis.call('SET', record, value)
        if at then forget(key, shadow) end
    end
    return deadline
end
