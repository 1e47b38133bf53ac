-- What most writes do, with as few calls, functions and numbers as there can be: it comes before prelude.lua, which makes
-- more of them. What it can't end goes on in write.lua, by what it leaves here.
--
-- KEYS and ARGV are those of write.lua, and so is what is returned.

-- Where a value was put: what it replaced, whether the index had the key already, and the last millisecond of its life.
local replaced, was_known, last_ms

if (ARGV[5] == 'SET' or ARGV[5] == 'LONG') and ARGV[1] ~= '' and ARGV[4] ~= '' and ARGV[4] ~= '0' then
    local call, format = redis.call, string.format
    local record, shadow, index, key, value = KEYS[1], KEYS[2], KEYS[4], ARGV[2], ARGV[3]
    replaced = redis.pcall('SET', record, value, 'PX', ARGV[4], 'GET')
    -- Of another type: nothing is changed.
    if type(replaced) == 'table' then return replaced end
    last_ms = call('PEXPIRETIME', record)
    local deadline = format('%d', last_ms + 1)
    local added = redis.pcall('ZADD', index, deadline, key)
    if type(added) == 'table' then
        -- The index is of another type: all is as it was.
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
    was_known = added == 0
    -- Where nothing lived, but something was to be told of, it has died.
    if replaced or not was_known then
        local last = format('%d', last_ms + ARGV[1])
        call('SET', shadow, value, 'PXAT', last)
        -- As `note` of prelude.lua, by texts: those of as many digits have the order of their numbers.
        local hint = call('GET', KEYS[6])
        if hint and #hint == 27 and #deadline == 13 and #last == 13
            and deadline >= string.sub(hint, 1, 13) and last <= string.sub(hint, 15) then
            return replaced
        end
    end
end
