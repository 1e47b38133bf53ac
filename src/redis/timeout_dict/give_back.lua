-- Ends a lease, where the claim is not void: the entry has the score again that it had when it was lent.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the key
-- ARGV[3]            the claim: the end of its lease
-- ARGV[4]            that score
-- Returns nothing.

local key = ARGV[2]
if holds(key, ARGV[3]) then
  redis.call('ZADD', index, again(ARGV[4]), key)
end
