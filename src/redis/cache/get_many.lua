-- ARGV[2], ...: the keys, one for each record. Answers their live values.

local values = {}
for at = 1, #KEYS - 2 do
    values[at] = false
    if redis.call('TYPE', KEYS[at]).ok == 'string' then
        local value, deadline = look(KEYS[at], ARGV[1 + at])
        if not is_dead(deadline) then values[at] = value or false end
    end
end
return values
