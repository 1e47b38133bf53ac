local key, name = ARGV[2], stem .. ARGV[2]
local value = read(name)
local at = score_of(key)
redis.call('ZREM', index, key)
redis.call('UNLINK', name)
return value and { at, value }
