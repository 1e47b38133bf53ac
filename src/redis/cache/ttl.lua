-- Returns the remaining TTL of the live value of a key, as PTTL does.
--
-- KEYS[1]   its record

local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 or redis.pcall('GETRANGE', KEYS[1], 0, 3) ~= TAGGED then return ttl end
return live(redis.call('GET', KEYS[1]), KEYS[1]) and ttl or -2
