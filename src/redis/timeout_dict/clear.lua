-- At most so many, since all others wait meanwhile. Returns how many there were.
local keys = redis.call('ZRANGE', index, 0, ARGV[2] - 1)
for _, key in ipairs(keys) do
  if redis.call('TYPE', stem .. key).ok == TYPE then
    redis.call('UNLINK', stem .. key)
  end
end
redis.call('ZREMRANGEBYRANK', index, 0, ARGV[2] - 1)
return #keys
