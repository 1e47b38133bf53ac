-- Takes out all that is under keys of one shard, with what was to tell of it. What another program put there stays.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   and what follows: the keys
-- Returns nothing.

for at = 2, #ARGV do
    local record, shadow, load = KEYS[3 * at - 5], KEYS[3 * at - 4], KEYS[3 * at - 3]
    if redis.call('TYPE', record).ok == 'string' then
        expire_if_due(ARGV[at], shadow)
        redis.call('UNLINK', record, load)
        unindex(ARGV[at], shadow)
    end
end
