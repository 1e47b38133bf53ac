-- Takes the value of a key out. What was dead already, and not told of, is told.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   EXPIRE where a live value dies now, which is told; else empty
-- Returns the live value, or false.

local key = ARGV[2]
local at, was_dead = settle(key, shadow)
local value = redis.call('GET', record)
if was_dead or not value then return false end
if ARGV[3] == 'EXPIRE' then tell(key, value, math.floor(now)) end
redis.call('UNLINK', record)
if at then forget(key, shadow) end
return value
