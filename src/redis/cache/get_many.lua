-- Reads the live values of keys of one shard. Changes nothing. What another program put there is passed over.
--
-- KEYS      as in prelude.lua, one record for each key
-- ARGV[2]   and what follows: the keys
-- Returns for each key its live value, or false.

local values = {}
for at = 1, #KEYS - 2 do
    values[at] = false
    if redis.call('TYPE', KEYS[at]).ok == 'string' then
        local value, deadline = look(KEYS[at], ARGV[1 + at])
        if not is_dead(deadline) then values[at] = value or false end
    end
end
return values
