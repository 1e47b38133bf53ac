local key = ARGV[2]
if holds(key, ARGV[3]) then
  redis.call('ZADD', index, again(ARGV[4]), key)
end
