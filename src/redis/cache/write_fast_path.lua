-- Fast path of most writes, with as few commands, functions and numbers as possible. It precedes prelude.lua, which
-- creates more of them. If it cannot complete a write, write.lua continues with the locals defined here.
--
-- KEYS, ARGV and the return value are those of write.lua.

-- Set once the value is written: the replaced value; whether the key is in the index with an earlier deadline, because
-- its previous value has expired and was not published; and the last live millisecond.
local replaced, has_expired_value, last_ms

if (ARGV[5] == 'SET' or ARGV[5] == 'LONG') and ARGV[1] ~= '' and ARGV[4] ~= '' and ARGV[4] ~= '0' then
    local call, format = redis.call, string.format
    local record, shadow, index, key, value = KEYS[1], KEYS[2], KEYS[4], ARGV[2], ARGV[3]
    replaced = redis.pcall('SET', record, value, 'PX', ARGV[4], 'GET')
    -- A key of another type: nothing was changed.
    if type(replaced) == 'table' then return replaced end
    last_ms = call('PEXPIRETIME', record)
    local deadline = format('%d', last_ms + 1)
    -- The deadline of an expired value is kept for its event.
    local added
    if replaced then
        added = redis.pcall('ZADD', index, deadline, key)
    else
        added = redis.pcall('ZADD', index, 'NX', deadline, key)
    end
    if type(added) == 'table' then
        -- The index has another type: restore the record.
        if not replaced then
            call('UNLINK', record)
        elseif call('EXISTS', shadow) == 1 then
            call('SET', record, replaced, 'PXAT', format('%d', call('PEXPIRETIME', shadow) - ARGV[1]))
        else
            call('SET', record, replaced)
        end
        return added
    end
    if ARGV[5] == 'SET' then call('UNLINK', KEYS[3]) end
    has_expired_value = not replaced and added == 0
    if not has_expired_value then
        local last = format('%d', last_ms + ARGV[1])
        call('SET', shadow, value, 'PXAT', last)
        -- As `update_hint` of prelude.lua, but compares strings: with the same number of digits, their order is that of
        -- the numbers. The current time is that of the deadline without the TTL.
        local hint = call('GET', KEYS[6])
        if hint and #hint == 27 and #deadline == 13 and #last == 13
            and deadline >= string.sub(hint, 1, 13) and last <= string.sub(hint, 15)
            and string.sub(hint, 1, 13) + ARGV[1] > last_ms - ARGV[4] then
            return replaced
        end
    end
end
