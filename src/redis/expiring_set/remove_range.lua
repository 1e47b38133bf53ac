-- Removes the first members of a range of scores, at most a thousand.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2], ARGV[3]   the bounds of the range
-- Returns the number of removed members; if it is a thousand, there may be more.

local members = redis.call('ZRANGEBYSCORE', key, clamp_start(ARGV[2]), ARGV[3], 'LIMIT', 0, MAX_REMOVED)
if #members > 0 then
  redis.call('ZREM', key, unpack(members))
end
return #members
