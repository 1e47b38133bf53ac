-- Gives an entry another deadline or none, unless it is a dead letter. A claim on it becomes void and has failed.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         in how many microseconds it is due
-- Returns 0 if there is no entry or it is a dead letter, 1 if it had no deadline, else 2.

local key = ARGV[2]
if not exists(KEYS[#KEYS]) then
  return 0
end
local old, dead_at = score_of(key), dead_since(key)
allow_full_server()
if dead_at then
  if dead_at > now then
    -- The last attempt is in progress and has failed now.
    redis.call('ZADD', dead, deadline_in(0), key)
  end
  return 0
end
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
if is_claimed(old) then
  fail(key, 1)
end
return tonumber(old) == math.huge and 1 or 2
