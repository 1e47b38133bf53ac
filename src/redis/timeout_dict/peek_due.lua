-- Counts the due entries or dead letters of a shard, and returns the first deadlines. Changes nothing.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the latest deadline that counts as due, in microseconds
-- ARGV[3]         maximum number of deadlines to return
-- ARGV[4]         DEAD for dead letters
-- Returns the time; the number of due entries; then the deadlines, oldest first.

local set = ARGV[4] == 'DEAD' and dead or index
local latest = score(math.min(now, tonumber(ARGV[2])))
local found = { now, redis.call('ZCOUNT', set, '-inf', latest) }
if found[2] > 0 then
  local due = redis.call('ZRANGEBYSCORE', set, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  for i = 2, #due, 2 do
    found[#found + 1] = micros(due[i])
  end
end
return found
