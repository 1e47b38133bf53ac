-- Looks up a value that may have to be loaded. If there is no live value and no other process is loading it, the caller
-- gets the lease.
--
-- KEYS[1]   the record
-- KEYS[2]   its load
-- KEYS[3]   a random value that `clear` changes; written here if it is missing
-- KEYS[4]   the removed tags (note_removed_tag.lua) if the loaded value is to have tags; else missing
-- ARGV[1]   the token of the caller; empty to take no lease
-- ARGV[2]   the lease in milliseconds
-- ARGV[3]   for how many milliseconds the random value is kept
-- ARGV[4]   REFRESH to take the lease only if there is a live value, which the load replaces; else missing
-- Returns the live value or false; the stale value, which may be used during the load, or false; for how many
-- milliseconds another process holds the lease: 0 if the caller holds it now, -1 if no process does; and if the caller
-- holds it, the time at which it was granted, else false.
--
-- A load is a hash: the holder of `token` may write its result until `till`; the previous value `stale` may be used
-- until `last`; both only while `cleared` is unchanged. A write to the key removes the load, or leaves another value:
-- the load of a refresh has the fingerprint `seen` of the value that it replaces, and if its deadline was changed in the
-- meantime, that (`until`). `tags` are those of the value that a load replaces. If the loaded value is to have tags,
-- `removals` is the number of the last removal of a tag before.
--
-- Idempotent: a retry finds its own token. A copy of the request may also be executed long after the reply to the
-- retry. If a write has revoked the lease by then, it is granted again, but at another time `grant`, so that the holder
-- cannot write the value of its load. If the lease is still held, the copy leaves `seen` as it is.

local load, my_token = KEYS[2], ARGV[1]
local value = live(redis.call('GET', KEYS[1]), KEYS[1])
if value and not ARGV[4] then return { value, false, -1, false } end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local cleared = redis.call('GET', KEYS[3]) or ''
local was = redis.call('HMGET', load, 'token', 'till', 'stale', 'last', 'cleared', 'tags', 'grant')
local token, last_ms, stale, last = was[1], tonumber(was[2] or 0), was[3], tonumber(was[4] or 0)
if was[5] ~= cleared then
    if was[5] then redis.call('UNLINK', load) end
    token, stale, last = false, false, 0
end
if now >= last or stale and not live(stale, KEYS[1]) then stale = false end
-- No lease or pause is longer than this, unless the clock was ahead when it was taken (that of a former master).
local longest = math.max(tonumber(ARGV[2]), 1000)
if token and token ~= my_token and now < last_ms then
    if my_token ~= '' and last_ms > now + longest then
        last_ms = now + longest
        redis.call('HSET', load, 'till', string.format('%.0f', last_ms))
    end
    return { false, stale, last_ms - now, false }
end
-- What a refresh would replace has been removed since, or has expired.
if my_token == '' or ARGV[4] and not value and token ~= my_token then return { false, stale, -1, false } end
-- Without a value, an eviction of the value of a later `clear` would go unnoticed.
if cleared == '' then
    cleared = my_token
    redis.call('SET', KEYS[3], cleared, 'PX', ARGV[3])
elseif redis.call('PTTL', KEYS[3]) < ARGV[3] / 2 then
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
last_ms = string.format('%.0f', now + ARGV[2])
redis.call('HSET', load, 'token', my_token, 'till', last_ms, 'cleared', cleared)
local grant = token == my_token and was[7]
local tags = grant and was[6]
if not grant then
    grant = time[1] .. '.' .. time[2]
    redis.call('HSET', load, 'grant', grant)
    if was[6] then redis.call('HDEL', load, 'seen', 'until', 'tags') end
    local replaced = value or stale
    if replaced then
        tags = string.sub(replaced, 1, #replaced - #event_value(replaced, KEYS[1]))
        redis.call('HSET', load, 'tags', tags)
    end
    if value then redis.call('HSET', load, 'seen', fingerprint(KEYS[1], value)) end
end
local kept_until = math.max(last, now + ARGV[2])
redis.call('PEXPIREAT', load, string.format('%.0f', kept_until))
-- publish.lua takes the tags whose version is missing as removed, so the versions must not expire before the load.
if tags then keep_versions(tags, KEYS[1], kept_until - now) end
if KEYS[4] then
    local count = redis.call('HMGET', KEYS[4], 'count')[1]
    if not count then
        count = string.format('%d', time[1] * 1000000 + time[2])
        redis.call('HSET', KEYS[4], 'count', count, 'since', count)
    end
    -- A retry keeps the number.
    if grant ~= was[7] then redis.call('HSET', load, 'removals', count) end
    if redis.call('PEXPIRE', KEYS[4], ARGV[2], 'GT') == 0 then redis.call('PEXPIRE', KEYS[4], ARGV[2], 'NX') end
end
return { false, stale, 0, grant }
