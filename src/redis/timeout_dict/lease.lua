-- Lends the oldest entries that are due in a shard: each stays, with the end of its lease as score. One whose
-- record is of another type is lent too, so that it does not stand in the way of all others.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         until when, as of peek_due.lua
-- ARGV[3]         how many at most; 512 or less
-- ARGV[4]         after how many bytes of values no more
-- ARGV[5]         the lease in microseconds
-- ARGV[6]         CLAIM, TAKE, or DEAD to take what is dead
-- ARGV[7]         of a claim, how often an entry may fail; 0 for no bound
-- Returns, as MessagePack: keys and scores in turns; for each key its value, false where it is no entry, or 1 (see
-- `first_due`); after what the leases end: that of entry `i`, counted from 1, 4 * i microseconds later; for each
-- which attempt it is; and whether there may be more.

local mode, most_attempts = ARGV[6], tonumber(ARGV[7])
local set = mode == 'DEAD' and dead or index
local due, values, is_cut = first_due(set, ARGV[2], ARGV[3], tonumber(ARGV[4]))
local first_end = lease_end_in(ARGV[5], mode == 'CLAIM' and CLAIM or TAKE)
local keys = {}
for i = 1, #values do
  keys[i] = due[2 * i - 1]
end
local failures = failures_of(keys)
if #keys > 0 then
  redis.call('ZREMRANGEBYRANK', set, 0, #keys - 1)
end
-- Each lease ends 4 microseconds after the one before. The last is written first, so that each comes at the
-- front: in a small sorted set, the end is far.
local leased, last, attempts = {}, {}, {}
for i = #keys, 1, -1 do
  local key, lease_end = keys[i], score(first_end + 4 * i)
  attempts[i] = (tonumber(failures[i] or 0) or 0) + 1
  if is_claimed(due[2 * i]) and set == index then
    fail(key, 1)
    attempts[i] = attempts[i] + 1
  end
  if not values[i] and KEEPS_ORPHANS then
    -- In a while, so that it does not stand in the way of all others.
    leased[#leased + 1], leased[#leased + 2] = deadline_in(60000000), key
  elseif not values[i] then
    redis.call('ZREM', index, key)
    clear_failures({ key })
  elseif mode == 'CLAIM' and most_attempts > 0 and attempts[i] >= most_attempts then
    leased[#leased + 1], leased[#leased + 2] = '+inf', key
    if attempts[i] > most_attempts then
      -- Whoever lent it before allowed more.
      lease_end, values[i] = deadline_in(0), false
    end
    last[#last + 1], last[#last + 2] = lease_end, key
  else
    leased[#leased + 1], leased[#leased + 2] = lease_end, key
  end
end
if #leased > 0 then
  redis.call('ZADD', set, unpack(leased))
end
if #last > 0 then
  redis.call('ZADD', dead, unpack(last))
end
return cmsgpack.pack({ due, values, first_end, attempts, is_cut })
