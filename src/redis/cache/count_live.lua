-- Counts the live values of keys of one shard; those of another type count, too.
--
-- KEYS      their records
-- Returns their number.

local count = 0
for at = 1, #KEYS do
    local is_tagged = redis.pcall('GETRANGE', KEYS[at], 0, 3) == TAGGED
    if is_tagged then
        if live(redis.call('GET', KEYS[at]), KEYS[at]) then count = count + 1 end
    elseif redis.call('PTTL', KEYS[at]) ~= -2 then
        count = count + 1
    end
end
return count
