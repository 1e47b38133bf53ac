-- What every script of a set begins with, after its layout (millis.lua or seconds.lua): the dead leave.
--
-- KEYS[1]   the sorted set: its members, by score
-- ARGV[1]   how old a score may be, in microseconds
--
-- So no script ever sees, counts or returns a dead member, and nothing else has to remove them.

key = KEYS[1]
text = function(score)
  return string.format('%.17g', score)
end
local time = redis.call('TIME')
local now = (time[1] * 1000000 + time[2]) / UNIT
local ttl = ARGV[1] / UNIT
redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now - ttl))

-- An idle set leaves when its last member has.
local function keep()
  local highest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if highest then
    keep_until((highest + ttl) * UNIT)
  end
end
