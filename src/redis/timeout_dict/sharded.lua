-- Layout of this crate's dictionaries; compat.lua is the other. Changes nothing by itself; prelude.lua follows.
--
-- KEYS[2]   a sorted set of the dead letters of the shard, by the time when they became that, or will become that if
--           the lease of the last attempt has not expired
-- KEYS[3]   a hash with the number of failed claims of each entry that has failed
-- KEYS[4]   a hash with the reason of a failed claim: the number of its attempt, a space, and the reason
--
-- A record is a string that holds the value. Scores are microseconds since the Unix epoch.

local dead, failed, reasons = KEYS[2], KEYS[3], KEYS[4]
local TYPE = 'string'
-- A member of the index without a record is not an entry, and is removed when a script finds it.
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

-- True for the lease of a claim, but not for the short lease of a take.
local function is_claimed(score)
  return tonumber(score) % 4 == 1
end

-- Returns the score of an entry that is returned, by its former score. The end of a lease becomes a deadline that has
-- come, so that the claim stays void.
local function unleased(former, now)
  return is_leased(former) and score(math.min(micros(former) + 1, now + now % 2)) or former
end

-- Raises an error for a record of another type; so does `exists`.
local function read(name)
  return redis.call('GET', name)
end

-- Returns the value, false if there is no record, or 1 for a record of another type; and the size of the value.
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

-- Returns the number of dead letters at a time, and the number of entries with failed attempts that may have further ones.
-- A dead letter has failed once more than is counted in `failed`. So if one attempt is allowed, none of them is in it; else
-- all are, as is the first.
local function count_failed(latest)
  local failures, count = redis.call('HLEN', failed), redis.call('ZCARD', dead)
  if count == 0 then
    return 0, failures
  end
  if redis.call('HGET', failed, redis.call('ZRANGE', dead, 0, 0)[1]) then
    failures = math.max(0, failures - count)
  end
  return redis.call('ZCOUNT', dead, '-inf', latest), failures
end

local function fail(key, times)
  redis.call('HINCRBY', failed, key, times)
end

-- Returns the reason of an entry with the number of its attempt before it, or an empty string.
local function reason_of(key)
  return redis.call('HGET', reasons, key) or ''
end

local function write_reason(key, numbered)
  redis.call('HSET', reasons, key, numbered)
end

-- Returns the reason of each entry, or false, and the keys of outdated reasons. `failures` says how often each entry has
-- failed. A reason of a later attempt is outdated: a process of a release without reasons has set the entry since.
local function reasons_of(keys, failures)
  if #keys == 0 or redis.call('EXISTS', reasons) == 0 then
    return {}, {}
  end
  local found, outdated = redis.call('HMGET', reasons, unpack(keys)), {}
  for i = 1, #keys do
    local attempt, reason = string.match(found[i] or '', '^(%d+) (.*)$')
    found[i] = reason or false
    if attempt and tonumber(attempt) > failures[i] then
      found[i], outdated[#outdated + 1] = false, keys[i]
    end
  end
  return found, outdated
end

-- `attempts` has the number of each entry's attempt, as far as it is not the first.
local function forget_outdated_reasons(keys, attempts)
  if redis.call('EXISTS', reasons) == 0 then
    return
  end
  local failures = {}
  for i = 1, #keys do
    failures[i] = (attempts[i] or 1) - 1
  end
  local _, outdated = reasons_of(keys, failures)
  if #outdated > 0 then
    redis.call('HDEL', reasons, unpack(outdated))
  end
end

-- Resets entries to no failures. At most 512, because `unpack` is limited by the size of Lua's stack.
local function clear_failures(keys)
  -- For one key, the check would take as long as the rest.
  if #keys == 0 or #keys > 1 and redis.call('EXISTS', failed, dead) == 0 then
    return
  end
  -- An entry with a reason has failed, or is a dead letter.
  if redis.call('HDEL', failed, unpack(keys)) + redis.call('ZREM', dead, unpack(keys)) > 0 then
    redis.call('HDEL', reasons, unpack(keys))
  end
end
