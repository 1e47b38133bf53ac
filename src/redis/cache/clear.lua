-- Takes out all that is under keys of one shard, with what was to tell of it. What another program put there stays.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   and what follows: the keys
-- Returns nothing.

for at = 2, #ARGV do
    local record, shadow = KEYS[2 * at - 3], KEYS[2 * at - 2]
    if redis.call('TYPE', record).ok == 'string' then
        settle(ARGV[at], shadow)
        redis.call('UNLINK', record)
        forget(ARGV[at], shadow)
    end
end
