-- Counts the entries of a shard, for the metrics. Changes nothing.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- Returns the numbers of entries, of dead letters, of due entries, and of entries with failed attempts that are neither
-- dead nor leased for their last attempt; and for how many microseconds the first entry has been due.

local count = redis.call('ZCARD', index)
if count == 0 then
  return { 0, 0, 0, 0, 0 }
end
local latest, oldest = score(now), 0
local due = redis.call('ZCOUNT', index, '-inf', latest)
if due > 0 then
  oldest = now - micros(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
end
local dead_count, resting = count_failed(latest)
return { count, dead_count, due, resting, oldest }
