-- What is due in a shard, or dead: how many, and the deadlines of the first. Changes nothing.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         until when, in microseconds; what is due later counts as not due
-- ARGV[3]         of how many to return the deadlines at most
-- ARGV[4]         DEAD for what is dead
-- Returns the time; in how long the first entry is due, or -1; how many are due; then the deadlines, oldest first.

local set = ARGV[4] == 'DEAD' and dead or index
local latest = score(math.min(now, tonumber(ARGV[2])))
local found = { now, -1, redis.call('ZCOUNT', set, '-inf', latest) }
if found[3] > 0 then
  local due = redis.call('ZRANGEBYSCORE', set, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  for i = 2, #due, 2 do
    found[#found + 1] = micros(due[i])
  end
end
local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
if first and tonumber(first) < math.huge then
  found[2] = math.max(0, micros(first) - now)
end
return found
