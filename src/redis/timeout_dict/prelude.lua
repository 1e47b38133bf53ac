-- First part of all scripts of a dictionary, after its layout (sharded.lua or compat.lua): the time, and functions for
-- deadlines and leases. Changes nothing by itself.
--
-- KEYS[1]      the index of a shard; then further keys of the layout; in scripts about one key, its record is the last
-- ARGV[1]      the prefix of the shard's records; the key of the entry follows it
--
-- A script about due entries does not know their keys beforehand: it makes the names of their records, which are in the
-- slot of the index. All other keys are declared.
--
-- Each entry of a shard is in the sorted set `index`. Its score is its deadline, the end of its lease while it is
-- leased, or +inf without a deadline. Its value is in its record. A dead letter, or an entry that becomes one at the
-- end of its current lease, is in `dead` with that time as its score, and has +inf in the index.
--
-- The end of a lease also identifies it: a claim is void if its entry has another score. So deadlines are even
-- microseconds, and ends of leases are odd: 1 modulo 4 for a claim, and 3 for a take, whose entries are leased until it
-- confirms them. Programs that know nothing of leases make them void by writing another score.
--
-- A script reads before it writes, so that an error of type changes nothing.

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

local function score_of(key)
  return redis.call('ZSCORE', index, key) or '+inf'
end

-- Lets the rest of a script run on a full server, which refuses commands that may need memory, unless the script has
-- already called another one that writes. For scripts about present entries. Removes nothing.
local function allow_full_server()
  redis.call('ZREMRANGEBYRANK', index, 1, 0)
end

-- Returns the set in which an entry has this lease; nil if the lease is void.
local function set_of_lease(key, number)
  local score = redis.call('ZSCORE', index, key)
  if score and micros(score) == number then
    return index
  end
  return score and dead_since(key) == number and dead or nil
end

-- Returns at most `count` due entries of a set from a score on, oldest first, without the first `skipped`: keys and
-- scores in turn; their values, false without a record and 1 for one of another type; and true if it stopped at the
-- maximum size, so that there may be more.
local function first_due(set, from, skipped, latest, count, most)
  local due = redis.call('ZRANGEBYSCORE', set, from, score(math.min(now, tonumber(latest))),
    'WITHSCORES', 'LIMIT', skipped, count)
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
