-- Ends a claim that was not acked, where it is not void: its entry is due again later, and has failed once more. The
-- last time that there may be it is dead.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the claim: the end of its lease
-- ARGV[4]         in how many microseconds it is due again
-- ARGV[5]         1 where it is so too after the end of the lease; else it is due again since then
-- Returns 1 where the claim was not void, else 0.

local key, number = ARGV[2], tonumber(ARGV[3])
local set = set_of_lease(key, number)
if not set or redis.call('EXISTS', KEYS[#KEYS]) == 0 then
  return 0
end
if set == dead then
  if now < number then
    redis.call('ZADD', dead, deadline_in(0), key)
  end
elseif now < number or ARGV[5] == '1' then
  fail(key, 1)
  redis.call('ZADD', index, deadline_in(ARGV[4]), key)
end
return 1
