-- Returns the time until an entry is due. Changes nothing.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- Returns microseconds, 0 if it is due or leased; -1 without a deadline and -2 without an entry, as Redis' TTL.

local key = ARGV[2]
if not exists(KEYS[#KEYS]) then
  return -2
end
local at = score_of(key)
if tonumber(at) == math.huge then
  local dead_at = dead_since(key)
  return dead_at and dead_at > now and 0 or -1
end
return is_leased(at) and 0 or math.max(0, micros(at) - now)
