-- The members are in the sorted set `key`. Each script begins with the dead.
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
