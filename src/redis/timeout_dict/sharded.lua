-- The layout of our own dictionaries; compat.lua is the other. Changes nothing by itself; prelude.lua follows.
--
-- A record is a string that holds the value. Scores are microseconds since the Unix epoch.

local TYPE = 'string'

local function score(micros)
  return micros < 2 ^ 53 and string.format('%d', micros) or '+inf'
end

local function micros(score)
  return tonumber(score)
end

local function is_lent(score)
  return tonumber(score) % 2 == 1
end

-- Raises what is of another type; so does `has`.
local function read(name)
  return redis.call('GET', name)
end

-- Of what is of another type nothing.
local function read_all(names)
  return redis.call('MGET', unpack(names))
end

local function has(name)
  return redis.call('STRLEN', name) > 0 or redis.call('EXISTS', name) == 1
end

local function write(name, first)
  redis.call('SET', name, ARGV[first])
end
