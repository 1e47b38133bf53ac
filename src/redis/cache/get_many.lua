-- Reads the live values of keys of one shard, until they are enough for one answer. Changes nothing. What another
-- program put there is passed over.
--
-- KEYS      their records
-- ARGV[1]   after how many bytes no more
-- Returns for each key its live value or false, for as many as it has read.

local values, bytes = {}, 0
for at = 1, #KEYS do
    local value = redis.pcall('GET', KEYS[at])
    values[at] = type(value) == 'string' and value
    bytes = bytes + (values[at] and #value or 0)
    if bytes >= tonumber(ARGV[1]) then break end
end
return values
