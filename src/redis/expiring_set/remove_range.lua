-- Takes the first members of a range of scores out, a thousand at most.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2], ARGV[3]   the ends of the range
-- Returns how many there were; with a thousand, there may be more.

local members = redis.call('ZRANGEBYSCORE', key, clamp_start(ARGV[2]), ARGV[3], 'LIMIT', 0, MAX_REMOVED)
if #members > 0 then
  redis.call('ZREM', key, unpack(members))
end
return #members
