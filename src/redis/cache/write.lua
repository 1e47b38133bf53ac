-- Puts a value at a key, with a TTL. Where a dead value was there that nobody was told of, it is told first.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   its new value
-- ARGV[4]   the TTL in milliseconds; empty for none
-- ARGV[5]   SET, NX (only where no live value is) or KEEPTTL (the TTL is for a value that replaces none)
-- Returns the live value that it replaced, or false; of NX, 1 where it was put, else 0.

local key, value, ttl, how = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- What most calls do: with as few commands as there can be.
if how == 'SET' and ttl and ttl > 0 and retention then
    local deadline = after(ttl)
    -- First, since it raises where the index is of another type.
    local is_new = redis.call('ZADD', index, whole(deadline), key) == 1
    local old = redis.pcall('SET', record, value, 'PXAT', whole(deadline - 1), 'GET')
    if type(old) == 'table' then
        -- Of another type: nothing is changed.
        if is_new or redis.call('EXISTS', shadow) == 0 then
            forget(key, shadow)
        else
            redis.call('ZADD', index, whole(deadline_of(shadow)), key)
        end
        return old
    end
    -- Where nothing lived, but something was to be told of, it has died.
    local dead = not old and not is_new and redis.call('GET', shadow)
    local died = dead and deadline_of(shadow)
    redis.call('SET', shadow, value, 'PXAT', whole(deadline - 1 + retention))
    note(deadline)
    if dead then tell(key, dead, died) end
    return old
end

local at, was_dead = settle(key, shadow)
if how ~= 'SET' then
    local old = not was_dead and redis.call('GET', record)
    if old and how == 'NX' then return 0 end
    if old then
        redis.call('SET', record, value, 'KEEPTTL')
        if at then shelve(key, shadow, value, at) end
        return old
    end
end
local deadline, old = after(ttl), nil
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
