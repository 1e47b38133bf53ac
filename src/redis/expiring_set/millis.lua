-- Score layout of this crate's sets; seconds.lua is the other. Changes nothing by itself; prelude.lua follows.
--
-- A score is milliseconds since the Unix epoch. Its fraction, in 2,048ths, orders the members of the same millisecond,
-- because Redis orders equal scores by their bytes. Until the year 2109, milliseconds take 42 bits, which leaves 11 of
-- the 53 bits of a double.

local UNIT, PARTS = 1000, 2048
-- Defined by prelude.lua.
local text, key

local function first_of(score)
  return text(math.floor(score))
end

local function last_of(score)
  return '(' .. text(math.floor(score) + 1)
end

-- Returns the next free score of a millisecond, after all its members.
local function next_score(score)
  local milli = math.floor(score)
  local first, last = first_of(score), last_of(score)
  local highest = redis.call('ZREVRANGEBYSCORE', key, last, first, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local next = math.max(math.floor(score * PARTS) / PARTS, (highest or milli - 1) + 1 / PARTS)
  if next < milli + 1 then
    return next
  end
  -- Members that were pushed again have left gaps. Close them, unless more than half of the scores are in use.
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
