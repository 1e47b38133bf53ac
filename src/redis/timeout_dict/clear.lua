-- Removes the first entries of a shard, due or not. A record of another type stays, since another program wrote it. At
-- most a batch, because the server executes nothing else in the meantime.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         maximum number of entries; 512 or less
-- Returns the number of removed entries.

local keys = redis.call('ZRANGE', index, 0, ARGV[2] - 1)
for _, key in ipairs(keys) do
  if redis.call('TYPE', record_prefix .. key).ok == TYPE then
    redis.call('UNLINK', record_prefix .. key)
  end
end
redis.call('ZREMRANGEBYRANK', index, 0, ARGV[2] - 1)
clear_failures(keys)
if #keys == 0 and reasons then
  -- Those of entries that were removed by a release without reasons.
  redis.call('UNLINK', reasons)
end
return #keys
