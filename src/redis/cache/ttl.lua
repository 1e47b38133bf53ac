-- Returns the remaining TTL of the live value of a key, as PTTL does: the rest, for a value with tags.
--
-- KEYS[1]   its record

return live(redis.call('GET', KEYS[1]), KEYS[1]) and ttl or -2
