-- Writes a loaded value, unless the lease has expired or a write has revoked it.
--
-- KEYS      as in prelude.lua, of one key; before the shard's keys, a random value that `clear` changes
-- ARGV[2]   the key
-- ARGV[3]   the token of the holder of the lease
-- ARGV[4]   the value
-- ARGV[5]   its TTL in milliseconds; empty for none
-- ARGV[6]   its stale window in milliseconds
-- ARGV[7]   the time at which the lease was granted: see lookup_lease.lua
-- Returns 1 if it was written, else 0.

local was = redis.call('HMGET', load, 'token', 'cleared', 'seen', 'tags', 'grant')
if was[1] ~= ARGV[3] or was[2] ~= (redis.call('GET', KEYS[4]) or '') then return 0 end
-- Plain commands and other programs write without removing the load: their value takes precedence, too. Only the value
-- that a refresh has seen is replaced, unless one of its tags was removed, and any value whose tags were removed before
-- the load: to write a value with tags removes the load.
local is_free = redis.call('PTTL', record) == -2
local value = not is_free and redis.pcall('GET', record)
if was[3] then
    is_free = live(was[4], record)
        and (is_free or type(value) == 'string' and fingerprint(record, value) == was[3])
else
    is_free = is_free or type(value) == 'string' and not live(value, record)
end
if not is_free or was[5] ~= ARGV[7] then
    redis.call('UNLINK', load)
    return 0
end
local deadline = put(record, shadow, load, ARGV[2], ARGV[4], tonumber(ARGV[5]))
if deadline and ARGV[6] ~= '0' then
    local last = integer(deadline + ARGV[6])
    redis.call('HSET', load, 'stale', ARGV[4], 'last', last, 'cleared', was[2])
    redis.call('PEXPIREAT', load, last)
    -- The stale copy is valid only while the random value is there.
    redis.call('PEXPIREAT', KEYS[4], last, 'GT')
end
return 1
