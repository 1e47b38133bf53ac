return redis.call('ZSCORE', key, ARGV[2])
