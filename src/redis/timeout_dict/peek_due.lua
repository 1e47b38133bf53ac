-- The time; in how long the first entry is due, or -1; how many are due; and when the first of them were to be.
local latest = bound(ARGV[2])
local found = { now, -1, redis.call('ZCOUNT', index, '-inf', latest) }
if found[3] > 0 then
  local due = redis.call('ZRANGEBYSCORE', index, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  for i = 2, #due, 2 do
    found[#found + 1] = micros(due[i])
  end
end
local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
if first and tonumber(first) < math.huge then
  found[2] = math.max(0, micros(first) - now)
end
return found
