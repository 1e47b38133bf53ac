-- Takes out all that is under keys of one shard. What was dead already, and not told of, is told.
--
-- KEYS      as in prelude.lua, one record for each key
-- ARGV[2]   EXPIRE where the live ones die now, which is told; else empty
-- ARGV[3]   and what follows: the keys
-- Returns the live value of the last one, or false.

local value, deadline
for at = 1, #KEYS - 2 do
    local record, key = KEYS[at], ARGV[2 + at]
    value, deadline = look(record, key)
    if value and is_dead(deadline) then
        tell(key, value, deadline)
        value = nil
    elseif value and ARGV[2] == 'EXPIRE' then
        tell(key, value, math.floor(now))
    end
    drop(record, key)
end
return value or false
