-- Leases the oldest due entries of a shard: each stays, and its score becomes the end of its lease. Records of another
-- type are leased, too, so that they do not block all other entries.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the latest deadline, as in peek_due.lua
-- ARGV[3]         maximum number of entries; 512 or less
-- ARGV[4]         number of value bytes after which to stop
-- ARGV[5]         the lease in microseconds
-- ARGV[6]         CLAIM, TAKE, or DEAD to take dead letters
-- ARGV[7]         for a claim, how often an entry may fail; 0 for no bound
-- Returns, as MessagePack: keys and scores in turn; the value of each key, false if it is not an entry, or 1 (see
-- `first_due`); the time after which the leases end, that of entry `i` (from 1) 4 * i microseconds later; the number of
-- the attempt of each, or nothing if all are the first; whether there may be more; and the time.

local mode, most_attempts = ARGV[6], tonumber(ARGV[7])
local set = mode == 'DEAD' and dead or index
local due, values, is_cut = first_due(set, '-inf', 0, ARGV[2], ARGV[3], tonumber(ARGV[4]))
local first_end = lease_end_in(ARGV[5], mode == 'CLAIM' and CLAIM or TAKE)
local keys, claimed = {}, {}
for i = 1, #values do
  keys[i] = due[2 * i - 1]
  -- Most scores are deadlines and end in an even digit, so that they need not be parsed.
  if string.byte(due[2 * i], -1) % 2 == 1 and set == index and is_claimed(due[2 * i]) then
    claimed[i] = true
  end
end
local failures, attempts = failures_of(keys), {}
if #keys > 0 then
  redis.call('ZREMRANGEBYRANK', set, 0, #keys - 1)
end
if next(claimed) or next(failures) then
  for i = 1, #keys do
    attempts[i] = (tonumber(failures[i] or 0) or 0) + 1
    if claimed[i] then
      fail(keys[i], 1)
      attempts[i] = attempts[i] + 1
    end
  end
end
-- Each lease ends 4 microseconds after the previous one. The last is written first, so that each is inserted at the
-- front, which is faster in a small sorted set.
local leased, last, size = {}, {}, 0
for i = #keys, 1, -1 do
  local key, lease_end, attempt = keys[i], score(first_end + 4 * i), attempts[i] or 1
  local is_last = mode == 'CLAIM' and most_attempts > 0 and attempt >= most_attempts
  if values[i] and not is_last then
    leased[size + 1], leased[size + 2] = lease_end, key
    size = size + 2
  elseif not values[i] and KEEPS_ORPHANS then
    -- Due again in a while, so that it does not block all other entries.
    leased[size + 1], leased[size + 2] = deadline_in(60000000), key
    size = size + 2
  elseif not values[i] then
    redis.call('ZREM', index, key)
    clear_failures({ key })
  else
    leased[size + 1], leased[size + 2] = '+inf', key
    size = size + 2
    if attempt > most_attempts then
      -- It was claimed before by a client with a higher bound. A dead letter has failed once more than is counted.
      lease_end, values[i] = deadline_in(0), false
      fail(key, -1)
    end
    last[#last + 1], last[#last + 2] = lease_end, key
  end
end
if size > 0 then
  redis.call('ZADD', set, unpack(leased))
end
if #last > 0 then
  redis.call('ZADD', dead, unpack(last))
end
-- The last attempt of a dead letter is not counted, so that its reason would seem to be of a later one.
if mode ~= 'DEAD' then
  forget_outdated_reasons(keys, attempts)
end
return cmsgpack.pack({ due, values, first_end, attempts, is_cut, now })
