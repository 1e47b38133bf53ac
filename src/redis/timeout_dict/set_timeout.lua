-- Gives an entry another deadline, or none. A claim on it is void then.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the key
-- ARGV[3]            in how many microseconds it is due
-- Returns 0 where there is no entry, 1 where it had no deadline, else 2.

local key = ARGV[2]
if not has(record_prefix .. key) then
  return 0
end
local old = score_of(key)
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
return tonumber(old) == math.huge and 1 or 2
