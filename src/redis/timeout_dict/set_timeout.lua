-- Gives an entry that is not dead another deadline, or none. A claim on it is void then, and has failed.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- Returns 0 where there is no entry or it is dead, 1 where it had no deadline, else 2.

local key = ARGV[2]
if not exists(KEYS[#KEYS]) then
  return 0
end
local old, dead_at = score_of(key), dead_since(key)
if dead_at then
  if dead_at > now then
    -- The last claim that there may be.
    redis.call('ZADD', dead, deadline_in(0), key)
  end
  return 0
end
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
if is_claimed(old) then
  fail(key, 1)
end
return tonumber(old) == math.huge and 1 or 2
