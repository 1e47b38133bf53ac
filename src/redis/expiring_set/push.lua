-- Adds or moves members, in their order, with one time as their score. If that score has expired, they are removed
-- instead.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the score; empty for the current time
-- ARGV[3]            1 to replace all members with this score
-- ARGV[4]            and the following: the members
-- Returns nothing.

local score = tonumber(ARGV[2]) or now
local is_expired = score <= now - ttl
if ARGV[3] == '1' and not is_expired then
  redis.call('ZREMRANGEBYSCORE', key, first_of(score), last_of(score))
end
local first_score = not is_expired and next_score(score)
-- In batches, because `unpack` is limited by the size of Lua's stack.
for from = 4, #ARGV, 1000 do
  local to = math.min(from + 999, #ARGV)
  if is_expired then
    redis.call('ZREM', key, unpack(ARGV, from, to))
  else
    local members = {}
    for i = from, to do
      members[#members + 1] = text(first_score + (i - 4) / PARTS)
      members[#members + 1] = ARGV[i]
    end
    redis.call('ZADD', key, unpack(members))
  end
end
update_key_expiry()
