local key = ARGV[2]
if not holds(key, ARGV[3]) then
  return 0
end
redis.call('ZREM', index, key)
redis.call('UNLINK', stem .. key)
return 1
