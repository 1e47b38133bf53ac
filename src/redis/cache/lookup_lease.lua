-- What is there for who wants a value that may have to be loaded. Where there is no live one and nobody loads it, who
-- asks takes the lease.
--
-- KEYS[1]   the record
-- KEYS[2]   its load
-- KEYS[3]   what changes whenever all is cleared
-- ARGV[1]   the token of who asks; empty where it takes no lease
-- ARGV[2]   the lease, in milliseconds
-- Returns the live value or false, what may be used while it is loaded anew or false, and for how many milliseconds
-- somebody else has the lease: 0 where who asks has it now, -1 where nobody has.
--
-- A load is a hash: `token` may put what it loads until `till`; `stale` was the value, and may be used until `last`; both
-- as long as `cleared` is what it was. A write to the key removes it. Sent again, this finds its own token.

local load, my_token = KEYS[2], ARGV[1]
local value = redis.call('GET', KEYS[1])
if value then return { value, false, -1 } end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local cleared = redis.call('GET', KEYS[3]) or ''
local was = redis.call('HMGET', load, 'token', 'till', 'stale', 'last', 'cleared')
local token, last_ms, stale, last = was[1], tonumber(was[2] or 0), was[3], tonumber(was[4] or 0)
if was[5] ~= cleared then
    if was[5] then redis.call('UNLINK', load) end
    token, stale, last = false, false, 0
end
if now >= last then stale = false end
-- Nobody has it, or rests, for longer than this, but by a clock that was ahead, as that of a master before a failover.
local longest = math.max(tonumber(ARGV[2]), 1000)
if token and token ~= my_token and now < last_ms then
    if my_token ~= '' and last_ms > now + longest then
        last_ms = now + longest
        redis.call('HSET', load, 'till', string.format('%.0f', last_ms))
    end
    return { false, stale, last_ms - now }
end
if my_token == '' then return { false, stale, -1 } end
last_ms = string.format('%.0f', now + ARGV[2])
redis.call('HSET', load, 'token', my_token, 'till', last_ms, 'cleared', cleared)
redis.call('PEXPIREAT', load, string.format('%.0f', math.max(last, now + ARGV[2])))
return { false, stale, 0 }
