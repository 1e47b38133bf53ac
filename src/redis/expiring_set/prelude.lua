-- What every script of a set begins with, after its layout (millis.lua or seconds.lua): the dead leave, a thousand at a
-- time, since all others wait meanwhile.
--
-- KEYS[1]   the sorted set: its members, by score
-- ARGV[1]   how old a score may be, in microseconds
--
-- Nothing else has to remove them; but more may be dead than have left, and no script sees, counts or returns these:
-- what it reads begins at `alive`.

key = KEYS[1]
text = function(score)
  return string.format('%.17g', score)
end
local MOST = 1000
local time = redis.call('TIME')
local now = (time[1] * 1000000 + time[2]) / UNIT
local ttl = ARGV[1] / UNIT
local alive = '(' .. text(now - ttl)
local dead = redis.call('ZCOUNT', key, '-inf', text(now - ttl))
if dead > 0 then
  redis.call('ZREMRANGEBYRANK', key, 0, math.min(dead, MOST) - 1)
end

local function is_alive(score)
  return score and tonumber(score) > now - ttl
end

-- The start of a range of scores, without the dead.
local function from_alive(start)
  return tonumber((string.gsub(start, '^%(', ''))) > now - ttl and start or alive
end

-- An idle set leaves when its last member has.
local function keep()
  local highest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if highest then
    keep_until((highest + ttl) * UNIT)
  end
end
