return redis.call('ZREM', key, ARGV[2])
