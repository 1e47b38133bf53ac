-- First part of all scripts of a set, after its layout (millis.lua or seconds.lua): removes expired members, at most a
-- thousand, because the server executes nothing else in the meantime.
--
-- KEYS[1]   the sorted set: its members by score
-- ARGV[1]   the TTL in microseconds
--
-- More members may have expired than were removed. No script returns or counts these: all reads begin at `live_from`.

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

-- Returns the start of a range of scores, at the first live score or later.
local function clamp_start(start)
  return tonumber((string.gsub(start, '^%(', ''))) > now - ttl and start or live_from
end

-- Lets the set expire with its last member.
local function update_key_expiry()
  local highest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if highest then
    expire_key_at((highest + ttl) * UNIT)
  end
end
