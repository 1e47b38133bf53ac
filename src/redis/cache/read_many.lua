-- Reads the live values of keys, and for how long they live, until they are enough for one answer. Changes nothing.
--
-- KEYS      their records
-- ARGV[1]   after how many bytes no more
-- Returns for each key its live value or false; and for each its TTL as of PTTL, or -3 where another program put
-- something else there; both for as many as it has read.

local values, ttls, bytes = {}, {}, 0
for at = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[at])
    local is_other = type(value) == 'table'
    values[at] = not is_other and value
    ttls[at] = is_other and -3 or value and redis.call('PTTL', KEYS[at]) or -2
    bytes = bytes + (values[at] and #value or 0)
    if bytes >= tonumber(ARGV[1]) then break end
end
return { values, ttls }
