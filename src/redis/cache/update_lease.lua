-- Renews or releases the lease of a load; does nothing if it has expired or was revoked.
--
-- KEYS[1]   the load: see lookup_lease.lua
-- KEYS[2]   as KEYS[4] of lookup_lease.lua
-- ARGV[1]   the token of the holder
-- ARGV[2]   new lease in milliseconds from now; 0 to release it
-- ARGV[3]   the token of the new holder
-- Returns 1 if it did, else 0.

local load = KEYS[1]
local was = redis.call('HMGET', load, 'token', 'last', 'tags')
if was[1] ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
    -- The stale value stays.
    redis.call('HDEL', load, 'token', 'till')
    if not was[2] then redis.call('UNLINK', load) end
    return 1
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last_ms = now + ARGV[2]
local kept_until = math.max(tonumber(was[2] or 0), last_ms)
redis.call('HSET', load, 'token', ARGV[3], 'till', string.format('%.0f', last_ms))
redis.call('PEXPIREAT', load, string.format('%.0f', kept_until))
if KEYS[2] then redis.call('PEXPIRE', KEYS[2], ARGV[2], 'GT') end
-- As in lookup_lease.lua. Last: while a cluster moves the slot, a version may be on another node, which is an error.
if was[3] then keep_versions(was[3], load, kept_until - now) end
return 1
