-- Deadline of a value that a refresh is to replace, used after another file of the script has changed it.

-- Gives the value of a refresh in progress the deadline of the present value, or ends a load that has not seen this.
-- `before` is what PEXPIRETIME returned for the record before the change.
local function keep_load(record, load, before)
    local seen, last = redis.call('HMGET', load, 'seen')[1], redis.call('PEXPIRETIME', record)
    if seen and last ~= -2 and string.sub(seen, 41) == tostring(before) then
        redis.call('HSET', load, 'seen', string.sub(seen, 1, 40) .. last, 'until', last)
    else
        redis.call('UNLINK', load)
    end
end
