-- The layout of dictionaries that the original class writes too (`compat`); sharded.lua is the other. Changes
-- nothing by itself; prelude.lua follows.
--
-- A record is a hash, whose key is that of the entry. Scores are seconds since the Unix epoch. Nothing is dead, and
-- failures are not counted: the original would not know what it has to reset.

local dead
local TYPE = 'hash'
-- A timer without data is one of the original's programs, which may be about to give it some: it is not ours to take
-- away.
local KEEPS_ORPHANS = true

local function score(micros)
  return micros < 2 ^ 53 and string.format('%.6f', micros / 1000000) or '+inf'
end

local function micros(score)
  return math.floor(tonumber(score) * 1000000 + 0.5)
end

-- The original's scores are even and odd: which is a lease can't be told by them.
local function is_leased()
  return false
end

local is_claimed = is_leased

local function read(name)
  local fields = redis.call('HGETALL', name)
  return #fields > 0 and fields
end

local function read_for_lease(name)
  local fields, size = redis.pcall('HGETALL', name), 0
  if fields.err then
    return 1, 0
  end
  for i = 1, #fields do
    size = size + #fields[i]
  end
  return #fields > 0 and fields, size
end

local function exists(name)
  return redis.call('HLEN', name) > 0
end

local function write(name, first)
  redis.call('DEL', name)
  -- In parts, since so many fit on Lua's stack.
  for from = first, #ARGV, 1000 do
    redis.call('HSET', name, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
end

local function dead_since() end

local function failures_of()
  return {}
end

local function fail() end

local function clear_failures() end
