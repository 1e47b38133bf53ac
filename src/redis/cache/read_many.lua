-- Reads the live values of keys and their TTLs, until the reply reaches its maximum size. Changes nothing.
--
-- KEYS      their records
-- ARGV[1]   number of value bytes after which to stop
-- Returns for each key that was read its live value or false; and for each its TTL as PTTL returns it, or -3 for a key
-- of another type.

local values, ttls, bytes = {}, {}, 0
for at = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[at])
    local is_other = type(value) == 'table'
    values[at] = live(value, KEYS[at])
    ttls[at] = is_other and -3 or values[at] and redis.call('PTTL', KEYS[at]) or -2
    bytes = bytes + (values[at] and #value or 0)
    if bytes >= tonumber(ARGV[1]) then break end
end
return { values, ttls }
