-- Takes the first entries out of a shard, due or not. A record of another type stays, as it is another
-- program's. At most so many, since all others wait meanwhile.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         how many at most; 512 or less
-- Returns how many there were.

local keys = redis.call('ZRANGE', index, 0, ARGV[2] - 1)
for _, key in ipairs(keys) do
  if redis.call('TYPE', record_prefix .. key).ok == TYPE then
    redis.call('UNLINK', record_prefix .. key)
  end
end
redis.call('ZREMRANGEBYRANK', index, 0, ARGV[2] - 1)
clear_failures(keys)
return #keys
