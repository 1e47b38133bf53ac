-- Removes the value of a key. Publishes the expiry of an expired value.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   EXPIRE to publish the live value as expired; else empty
-- Returns the live value, or false.

local key = ARGV[2]
-- First: a full server refuses to add an event, unless the script has already changed something.
redis.call('UNLINK', load)
local at, had_expired = expire_if_due(key, shadow)
local stored = redis.call('GET', record)
local value = checked(stored, record)
if had_expired or not stored then return false end
if value and ARGV[3] == 'EXPIRE' then publish_event(key, event_value(value, record), math.floor(now)) end
redis.call('UNLINK', record)
if at then unindex(key, shadow) end
return value
