-- The layout of our own dictionaries; compat.lua is the other. Changes nothing by itself; prelude.lua follows.
--
-- KEYS[2]   the dead of the shard, a sorted set: since when, or from when on where the last lease is not over
-- KEYS[3]   a hash: how often claims on an entry have failed, where any has
--
-- A record is a string that holds the value. Scores are microseconds since the Unix epoch.

local dead, failed = KEYS[2], KEYS[3]
local TYPE = 'string'
-- What is in the index and has no record is no entry, and leaves when it is met.
local KEEPS_ORPHANS = false

local function score(micros)
  return micros < 2 ^ 53 and string.format('%d', micros) or '+inf'
end

local function micros(score)
  return tonumber(score)
end

local function is_leased(score)
  return tonumber(score) % 2 == 1
end

-- By a claim, and not for a moment, by a take.
local function is_claimed(score)
  return tonumber(score) % 4 == 1
end

-- Raises what is of another type; so does `has`.
local function read(name)
  return redis.call('GET', name)
end

-- False where there is nothing, 1 for what is of another type, else the value; and its size.
local function read_for_lease(name)
  local value = redis.pcall('GET', name)
  if type(value) == 'table' then
    return 1, 0
  end
  return value, value and #value or 0
end

local function exists(name)
  return redis.call('STRLEN', name) > 0 or redis.call('EXISTS', name) == 1
end

local function write(name, first)
  redis.call('SET', name, ARGV[first])
end

local function dead_since(key)
  local at = redis.call('ZSCORE', dead, key)
  return at and tonumber(at)
end

local function failures_of(keys)
  if #keys == 0 or redis.call('EXISTS', failed) == 0 then
    return {}
  end
  return redis.call('HMGET', failed, unpack(keys))
end

local function fail(key, times)
  redis.call('HINCRBY', failed, key, times)
end

-- As if none had ever been dead or failed. Of 512 at most, since so many fit on Lua's stack.
local function clear_failures(keys)
  if #keys > 0 then
    redis.call('HDEL', failed, unpack(keys))
    redis.call('ZREM', dead, unpack(keys))
  end
end
