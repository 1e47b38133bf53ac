-- ARGV[2]: EXPIRE where the live ones die now, which is told of. ARGV[3], ...: the keys, one for each record.
-- Answers the live value of the last one.

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
