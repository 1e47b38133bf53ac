-- Puts back a popped member that could not be decoded, unless it was pushed again in the meantime.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the member
-- ARGV[3]            the score that it had
-- Returns nothing.

-- Removes nothing: a full server refuses commands that may need memory, unless the script has already called another
-- one that writes.
redis.call('ZREMRANGEBYRANK', key, 1, 0)
redis.call('ZADD', key, 'NX', ARGV[3], ARGV[2])
update_key_expiry()
