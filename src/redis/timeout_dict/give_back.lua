-- Ends a lease of which nobody has heard: the entry is what it was before it was lent, unless that is void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the end of its lease
-- ARGV[4]         the score that it had
-- Returns nothing.

local key, number = ARGV[2], tonumber(ARGV[3])
local set = set_of_lease(key, number)
if set and redis.call('EXISTS', KEYS[#KEYS]) == 1 then
  if set == dead and is_claimed(ARGV[3]) then
    -- The last claim that there may be is still to be made.
    redis.call('ZREM', dead, key)
    set = index
  end
  redis.call('ZADD', set, unleased(ARGV[4]), key)
end
