-- Renews the lease of a load, or gives it back; does nothing where it is over, or taken away.
--
-- KEYS[1]   the load: see lookup_lease.lua
-- ARGV[1]   the token of who has the lease
-- ARGV[2]   for how many milliseconds from now; 0 gives it back
-- ARGV[3]   whose it is from then on
-- Returns 1 where it did, else 0.

local load = KEYS[1]
local was = redis.call('HMGET', load, 'token', 'last')
if was[1] ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
    -- What is stale stays.
    redis.call('HDEL', load, 'token', 'till')
    if not was[2] then redis.call('UNLINK', load) end
    return 1
end
local time = redis.call('TIME')
local last_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
redis.call('HSET', load, 'token', ARGV[3], 'till', string.format('%.0f', last_ms))
redis.call('PEXPIREAT', load, string.format('%.0f', math.max(tonumber(was[2] or 0), last_ms)))
return 1
