return redis.call('ZREMRANGEBYSCORE', key, ARGV[2], ARGV[3])
