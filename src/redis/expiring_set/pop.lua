-- Removes the member with the lowest score.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- Returns it and its score; nothing if the set is empty.

if expired_count <= MAX_REMOVED then
  return redis.call('ZPOPMIN', key)
end
local first = redis.call('ZRANGEBYSCORE', key, live_from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if #first > 0 then
  redis.call('ZREM', key, first[1])
end
return first
