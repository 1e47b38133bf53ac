-- What was popped in vain.
redis.call('ZADD', key, 'NX', ARGV[3], ARGV[2])
keep()
