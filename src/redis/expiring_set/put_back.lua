-- Puts back what was popped and could not be read, unless somebody pushed it again meanwhile.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the member
-- ARGV[3]            the score that it had
-- Returns nothing.

redis.call('ZADD', key, 'NX', ARGV[3], ARGV[2])
update_key_expiry()
