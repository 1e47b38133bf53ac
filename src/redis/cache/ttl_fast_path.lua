-- Fast path of a TTL, of values without tags. It precedes tags.lua, which creates functions that it does not need.
--
-- KEYS and the return value are those of ttl.lua, which continues with the local defined here.

local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 or redis.pcall('GETRANGE', KEYS[1], 0, 3) ~= '\193tag' then return ttl end
