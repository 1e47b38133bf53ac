return redis.call('ZPOPMIN', key)
