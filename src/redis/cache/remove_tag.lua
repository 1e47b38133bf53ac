-- Removes the values of a shard that have a tag.
--
-- KEYS[1]   the version of the tag
-- KEYS[2]   the tags that were removed during loads of values with tags, by the time of their removal. It exists while
--           such a load runs. The member `since` stands for all tags: their earlier removals are not known.
-- ARGV[1]   the tag
-- ARGV[2]   the maximum number of tags in KEYS[2]

redis.call('UNLINK', KEYS[1])
local left = redis.call('PTTL', KEYS[2])
if left > 0 then
    local time = redis.call('TIME')
    local now = string.format('%d', time[1] * 1000000 + time[2])
    if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[2]) then
        -- Loads in progress are not stored.
        redis.call('UNLINK', KEYS[2])
        redis.call('ZADD', KEYS[2], now, 'since')
        redis.call('PEXPIRE', KEYS[2], left)
    end
    redis.call('ZADD', KEYS[2], now, 'tag:' .. ARGV[1])
end
return 1
