-- Writes a loaded value, unless the lease has expired or a write has revoked it.
--
-- KEYS      as in prelude.lua, of one key; before the shard's keys, a random value that `clear` changes; then, if the
--           value has tags of its own, the removed tags (note_removed_tag.lua), and the keys of the versions of its tags
-- ARGV[2]   the key
-- ARGV[3]   the token of the holder of the lease
-- ARGV[4]   the value
-- ARGV[5]   its TTL in milliseconds; empty for none
-- ARGV[6]   its stale window in milliseconds
-- ARGV[7]   the time at which the lease was granted: see lookup_lease.lua
-- ARGV[8]   the version of those of its tags that have none; missing if the value keeps the tags of the replaced one
-- ARGV[9]   and the following: its tags
-- Returns 1 if it was written, else 0.

local was = redis.call('HMGET', load, 'token', 'cleared', 'seen', 'tags', 'grant', 'until', 'removals')
if was[1] ~= ARGV[3] or was[2] ~= (redis.call('GET', KEYS[4]) or '') then return 0 end
-- Plain commands and other programs write without removing the load: their value takes precedence, too. Only the value
-- that a refresh has seen is replaced, and any value whose tags were removed before the load: to write a value with tags
-- removes the load.
local is_free = redis.call('PTTL', record) == -2
local old = not is_free and redis.pcall('GET', record)
if was[3] then
    is_free = is_free or type(old) == 'string' and fingerprint(record, old) == was[3]
else
    is_free = is_free or type(old) == 'string' and not live(old, record)
end
-- A removed tag takes precedence as well.
is_free = is_free and was[5] == ARGV[7] and (not was[4] or live(was[4], record))
if is_free and ARGV[8] then
    -- Without the first field, the removals are not known.
    local began, fields = tonumber(was[7] or 0), { 'since' }
    for nth = 9, #ARGV do fields[nth - 7] = 'tag:' .. ARGV[nth] end
    local removals = redis.call('HMGET', KEYS[5], unpack(fields))
    is_free = removals[1] and true
    for nth = 1, #fields do
        is_free = is_free and not (removals[nth] and tonumber(removals[nth]) > began)
    end
end
local ttl = tonumber(ARGV[5])
if was[6] then
    -- The replaced value was given this deadline during the load.
    local last = tonumber(was[6])
    ttl = last >= 0 and last - math.floor(now) or nil
    is_free = is_free and (not ttl or ttl > 0)
end
if not is_free then
    redis.call('UNLINK', load)
    return 0
end

local value, stale = ARGV[4], tonumber(ARGV[6])
local has_own, tags = ARGV[8] and #ARGV > 8, not ARGV[8] and was[4] and #was[4] > 8 and was[4]
if (has_own or tags) and ttl ~= 0 then
    -- Without its zero tags.
    if string.sub(value, 1, 8) == TAGGED .. '\0\0\0\0' then value = string.sub(value, 9) end
    local kept = ttl and ttl + stale
    if has_own then
        value = with_tags(value, #ARGV - 8, 9, 6, ARGV[8], kept)
    else
        value = tags .. value
        keep_tags(value, record, kept)
    end
end
local deadline = put(record, shadow, load, ARGV[2], value, ttl)
if deadline and stale > 0 then
    local last = integer(deadline + ARGV[6])
    redis.call('HSET', load, 'stale', value, 'last', last, 'cleared', was[2])
    redis.call('PEXPIREAT', load, last)
    -- The stale copy is valid only while the random value is there.
    redis.call('PEXPIREAT', KEYS[4], last, 'GT')
end
return 1
