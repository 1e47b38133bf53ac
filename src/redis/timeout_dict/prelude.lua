-- What every script of a dictionary begins with, after its layout (sharded.lua or compat.lua): the time, and
-- what a deadline and a claim are. Changes nothing by itself.
--
-- KEYS[1]   the index of a shard
-- ARGV[1]   what the names of its records begin with; their keys follow
--
-- The entries of a shard: each is in the sorted set `index`, with its deadline as score; while it is lent, with
-- the end of the lease; without deadline, with +inf. Its value is in its record. What is in the index and has
-- no record is no entry, and leaves when it is met.
--
-- The end of a lease is also its claim's number: a claim is void when the entry has another score. So ends are
-- odd microseconds, and deadlines even ones. Programs that know nothing of claims make them void, too.
--
-- A script reads before it writes, so that what raises changes nothing.

local index, record_prefix = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function deadline_in(micros)
  local at = now + micros
  return score(at + at % 2)
end

local function lease_end_in(micros)
  local at = now + micros
  return at + 1 - at % 2
end

-- The deadline of what goes back. The end of a lease that ran out is one now, and its claim is void.
local function again(deadline)
  return is_lent(deadline) and score(micros(deadline) + 1) or deadline
end

local function score_of(key)
  return redis.call('ZSCORE', index, key) or '+inf'
end

local function holds(key, lease_end)
  local score = redis.call('ZSCORE', index, key)
  return score and micros(score) == tonumber(lease_end) and has(record_prefix .. key)
end

local function bound(latest)
  return score(math.min(now, tonumber(latest)))
end

-- At most `count` entries that are due, the oldest first, each with its score; their names; and their values:
-- false where there is no record, so that it is no entry any more, and 1 for one of another type.
local function first_due(latest, count)
  local due = redis.call('ZRANGEBYSCORE', index, '-inf', bound(latest), 'WITHSCORES', 'LIMIT', 0, count)
  if #due == 0 then
    return due, {}, {}
  end
  local names = {}
  for i = 1, #due / 2 do
    names[i] = record_prefix .. due[2 * i - 1]
  end
  local values = read_all(names)
  for i = 1, #names do
    if not values[i] then
      values[i] = redis.call('EXISTS', names[i]) == 1 and 1
    end
  end
  return due, names, values
end
