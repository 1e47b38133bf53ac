return redis.call('ZCARD', key)
