-- Ends a claim as failed, unless it is void: the entry is due again later, with one more failure. After the last
-- allowed attempt, it is a dead letter. The end of the lease ends the attempt without a reason.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         the claim: the end of its lease
-- ARGV[4]         in how many microseconds it is due again
-- ARGV[5]         1 to apply this delay even after the end of the lease; else the entry is already due again since then
-- ARGV[6]         the reason of the failure, after the number of the attempt and a space; or empty
-- Returns 1 if the claim was not void, else 0.

local key, number = ARGV[2], tonumber(ARGV[3])
local set = set_of_lease(key, number)
if not set or redis.call('EXISTS', KEYS[#KEYS]) == 0 then
  return 0
end
if ARGV[6] ~= '' and now >= number then
  return 0
end
allow_full_server()
if set == dead then
  if now < number then
    redis.call('ZADD', dead, deadline_in(0), key)
  end
else
  fail(key, 1)
  local is_late = now >= number and ARGV[5] ~= '1'
  redis.call('ZADD', index, is_late and unleased(score_of(key), now) or deadline_in(ARGV[4]), key)
end
if ARGV[6] ~= '' then
  write_reason(key, ARGV[6])
end
return 1
