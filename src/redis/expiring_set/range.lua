return redis.call('ZRANGEBYSCORE', key, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
