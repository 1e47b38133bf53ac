-- What every script of a dictionary begins with, after its layout (sharded.lua or compat.lua): the time, and
-- what a deadline and a lease are. Changes nothing by itself.
--
-- KEYS[1]      the index of a shard; further ones as the layout says; of what is about one key, its record is the last
-- ARGV[1]      what the names of its records begin with; their keys follow
--
-- What is about entries that are due can't say beforehand which: it makes the names of their records, all of which
-- are in the index' slot. All other keys are declared.
--
-- The entries of a shard: each is in the sorted set `index`, with its deadline as score; while it is lent, with
-- the end of the lease; without deadline, with +inf. Its value is in its record. What is dead, and what will be at the
-- end of the last lease that there may be, is in `dead` by that time, and has +inf in the index.
--
-- The end of a lease is also its number: a claim is void when the entry has another score. So deadlines are even
-- microseconds; of odd ones, 1 of 4 is the end of a claim, and 3 that of a take, which is lent what it takes until
-- it says that it has it. Programs that know nothing of claims make them void, too.
--
-- A script reads before it writes, so that what raises changes nothing.

local CLAIM, TAKE = 1, 3
local index, record_prefix = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function deadline_in(micros)
  local at = now + micros
  return score(at + at % 2)
end

local function lease_end_in(micros, kind)
  local at = now + micros
  return at + (kind - at) % 4
end

-- The deadline of what goes back. The end of a lease that ran out is one now, and its claim is void.
local function unleased(deadline)
  return is_leased(deadline) and score(micros(deadline) + 1) or deadline
end

local function score_of(key)
  return redis.call('ZSCORE', index, key) or '+inf'
end

-- In which set the lease of an entry is, by its number; nil where there is no such lease any more.
local function set_of_lease(key, number)
  local score = redis.call('ZSCORE', index, key)
  if score and micros(score) == number then
    return index
  end
  return score and dead_since(key) == number and dead or nil
end

-- At most `count` entries that are due in a set, the oldest first: keys and scores in turns; their values, false where
-- there is no record and 1 for one of another type; and whether there may be more, since these are enough bytes.
local function first_due(set, latest, count, most)
  local due = redis.call('ZRANGEBYSCORE', set, '-inf', score(math.min(now, tonumber(latest))),
    'WITHSCORES', 'LIMIT', 0, count)
  local values, bytes = {}, 0
  for i = 1, #due / 2 do
    local size
    values[i], size = read_for_lease(record_prefix .. due[2 * i - 1])
    bytes = bytes + size
    if bytes >= most and 2 * i < #due then
      return { unpack(due, 1, 2 * i) }, values, true
    end
  end
  return due, values, false
end
