-- Removes all entries of keys of one shard. Values of another type stay, since another program wrote them.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   and the following: the keys
-- Returns nothing.

for at = 2, #ARGV do
    local record, shadow, load = KEYS[3 * at - 5], KEYS[3 * at - 4], KEYS[3 * at - 3]
    if redis.call('TYPE', record).ok == 'string' then
        -- First: a full server refuses to add an event, unless the script has already changed something.
        redis.call('UNLINK', record, load)
        expire_if_due(ARGV[at], shadow)
        unindex(ARGV[at], shadow)
    end
end
