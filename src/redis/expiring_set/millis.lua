-- The layout of our own sets; seconds.lua is the other. Changes nothing by itself; prelude.lua follows.
--
-- A score is milliseconds since the Unix epoch. Its fraction, in 2,048ths, orders what shares a millisecond:
-- Redis would order equal scores by their bytes. Until the year 2109 milliseconds take 42 bits, which leaves a
-- double 11.

local UNIT, PARTS = 1000, 2048
-- What prelude.lua defines, and the functions here use.
local text, key

local function first_of(score)
  return text(math.floor(score))
end

local function last_of(score)
  return '(' .. text(math.floor(score) + 1)
end

-- Where the next member of that millisecond comes: behind all that are there.
local function next_score(score)
  local milli = math.floor(score)
  local first, last = first_of(score), last_of(score)
  local highest = redis.call('ZREVRANGEBYSCORE', key, last, first, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local next = math.max(math.floor(score * PARTS) / PARTS, (highest or milli - 1) + 1 / PARTS)
  if next < milli + 1 then
    return next
  end
  -- What was pushed again has left gaps. To close them is worth it where half of the parts are.
  local count = redis.call('ZCOUNT', key, first, last)
  if count > PARTS / 2 then
    return milli + (PARTS - 1) / PARTS
  end
  for i, member in ipairs(redis.call('ZRANGEBYSCORE', key, first, last)) do
    redis.call('ZADD', key, text(milli + (i - 1) / PARTS), member)
  end
  return milli + count / PARTS
end

local function expire_key_at(micros)
  if micros < 2 ^ 53 then
    redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(micros / 1000)))
  else
    redis.call('PERSIST', key)
  end
end
