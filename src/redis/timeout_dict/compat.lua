-- The layout of dictionaries that the original class writes too (`compat`); sharded.lua is the other. Changes
-- nothing by itself; prelude.lua follows.
--
-- A record is a hash, whose key is that of the entry. Scores are seconds since the Unix epoch.

local TYPE = 'hash'

local function score(micros)
  return micros < 2 ^ 53 and string.format('%.6f', micros / 1000000) or '+inf'
end

local function micros(score)
  return math.floor(tonumber(score) * 1000000 + 0.5)
end

-- The original's scores are even and odd: which is a lease can't be told by them.
local function is_lent()
  return false
end

local function read(name)
  local fields = redis.call('HGETALL', name)
  return #fields > 0 and fields
end

local function read_all(names)
  local values = {}
  for i, name in ipairs(names) do
    local fields = redis.pcall('HGETALL', name)
    values[i] = not fields.err and #fields > 0 and fields
  end
  return values
end

local function has(name)
  return redis.call('HLEN', name) > 0
end

local function write(name, first)
  redis.call('DEL', name)
  -- In parts, since so many fit on Lua's stack.
  for from = first, #ARGV, 1000 do
    redis.call('HSET', name, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
end
