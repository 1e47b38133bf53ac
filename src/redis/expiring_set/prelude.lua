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
local MAX_REMOVED = 1000
local time = redis.call('TIME')
local now = (time[1] * 1000000 + time[2]) / UNIT
local ttl = ARGV[1] / UNIT
local live_from = '(' .. text(now - ttl)
local expired_count = redis.call('ZCOUNT', key, '-inf', text(now - ttl))
if expired_count > 0 then
  redis.call('ZREMRANGEBYRANK', key, 0, math.min(expired_count, MAX_REMOVED) - 1)
end

local function is_live(score)
  return score and tonumber(score) > now - ttl
end

-- The start of a range of scores, without the dead.
local function clamp_start(start)
  return tonumber((string.gsub(start, '^%(', ''))) > now - ttl and start or live_from
end

-- An idle set leaves when its last member has.
local function update_key_expiry()
  local highest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if highest then
    expire_key_at((highest + ttl) * UNIT)
  end
end
