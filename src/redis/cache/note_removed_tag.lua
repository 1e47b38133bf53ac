-- Notes for the loads of a shard that a tag is about to be removed; `commands/loads` sets how many it keeps.
--
-- KEYS[1]   the removed tags: a hash that exists while loads of values with tags run, with the number of the last removal
--           of each tag, and that of the last one (`count`). Those up to `since` are not known any more. Numbers start at
--           the time at which the hash is created, so that they also grow if it is lost.
-- ARGV[1]   the tag
-- ARGV[2]   the maximum number of tags

local count = redis.call('HMGET', KEYS[1], 'count')[1]
if not count then return 0 end
count = string.format('%d', count + 1)
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2]) then
    -- Loads in progress are not stored.
    local left = redis.call('PTTL', KEYS[1])
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'since', count)
    redis.call('PEXPIRE', KEYS[1], left)
end
redis.call('HSET', KEYS[1], 'count', count, 'tag:' .. ARGV[1], count)
return 1
