-- Layout of dictionaries that are shared with the original class (`compat`); sharded.lua is the other. Changes nothing
-- by itself; prelude.lua follows.
--
-- A record is a hash at the key of the entry. Scores are seconds since the Unix epoch. Failures are not counted and
-- there are no dead letters, because the original class would not reset them.

local dead, reasons
local TYPE = 'hash'
-- A deadline without data was written by an original program, which may be about to write the data. So it is not
-- deleted.
local KEEPS_ORPHANS = true

local function score(micros)
  return micros < 2 ^ 53 and string.format('%.6f', micros / 1000000) or '+inf'
end

local function micros(score)
  return math.floor(tonumber(score) * 1000000 + 0.5)
end

-- The original's scores may be odd, so that leases cannot be told apart by their scores.
local function is_leased()
  return false
end

local is_claimed = is_leased

-- The former score may be the end of an expired lease, whose claim must stay void.
local function unleased(former)
  return score(micros(former) - 1)
end

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
  -- In batches, because `unpack` is limited by the size of Lua's stack.
  for from = first, #ARGV, 1000 do
    redis.call('HSET', name, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
end

local function dead_since() end

local function failures_of()
  return {}
end

local function count_failed()
  return 0, 0
end

local function fail() end

local function reason_of()
  return ''
end

local function write_reason() end

local function forget_outdated_reasons() end

local function clear_failures() end
