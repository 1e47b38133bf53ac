-- Puts what was loaded, unless the lease is over, or was taken away by a write.
--
-- KEYS      as in prelude.lua, of one key; before those of its shard what changes whenever all is cleared
-- ARGV[2]   the key
-- ARGV[3]   the token of who has the lease
-- ARGV[4]   the value
-- ARGV[5]   its TTL in milliseconds; empty for none
-- ARGV[6]   for how many milliseconds after its end it may be used while it is loaded anew
-- Returns 1 where it did, else 0.

local was = redis.call('HMGET', load, 'token', 'cleared')
if was[1] ~= ARGV[3] or was[2] ~= (redis.call('GET', KEYS[4]) or '') then return 0 end
-- What takes no lease away: another program has put it there, or a plain command.
if redis.call('PTTL', record) ~= -2 then
    redis.call('UNLINK', load)
    return 0
end
local deadline = put(record, shadow, load, ARGV[2], ARGV[4], tonumber(ARGV[5]))
if deadline and ARGV[6] ~= '0' then
    local last = integer(deadline + ARGV[6])
    redis.call('HSET', load, 'stale', ARGV[4], 'last', last, 'cleared', was[2])
    redis.call('PEXPIREAT', load, last)
end
return 1
