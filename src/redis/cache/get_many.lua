-- Reads the live values of keys of one shard, until the reply reaches its maximum size. Changes nothing. Keys of
-- another type count as missing.
--
-- KEYS      their records
-- ARGV[1]   number of value bytes after which to stop
-- Returns the live value or false for each key that was read.

local values, bytes = {}, 0
for at = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[at])
    values[at] = live(value, KEYS[at])
    bytes = bytes + (values[at] and #value or 0)
    if bytes >= tonumber(ARGV[1]) then break end
end
return values
