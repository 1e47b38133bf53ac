-- Notes for the loads of a shard that a tag is about to be removed.
--
-- KEYS[1]   the tags that were removed during loads of values with tags: a hash with the time of each removal. It exists
--           while such a load runs. The field `since` stands for all tags: their earlier removals are not known.
-- ARGV[1]   the tag
-- ARGV[2]   the maximum number of tags

local left = redis.call('PTTL', KEYS[1])
if left <= 0 then return 0 end
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000000 + time[2])
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2]) then
    -- Loads in progress are not stored.
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'since', now)
    redis.call('PEXPIRE', KEYS[1], left)
end
redis.call('HSET', KEYS[1], 'tag:' .. ARGV[1], now)
return 1
