-- Lends the oldest entries that are due in a shard: each stays, with the end of its lease as score. One whose
-- record is of another type is lent too, so that it does not stand in the way of all others.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            until when, as of peek_due.lua
-- ARGV[3]            how many at most
-- ARGV[4]            the lease in microseconds
-- Returns, as MessagePack: keys and scores in turns; for each key its value, false, or 1 (see `first_due`); and after
-- what the leases end: that of entry `i`, counted from 1, 2 * i microseconds later.

local due, names, values = first_due(ARGV[2], ARGV[3])
local first_end = lease_end_in(ARGV[4])
-- Each lease ends 2 microseconds after the one before. The last is written first, so that each comes at the
-- front: in a small sorted set, the end is far.
local scores, count = {}, 0
for i = #names, 1, -1 do
  if values[i] then
    scores[count + 1] = score(first_end + 2 * i)
    scores[count + 2] = due[2 * i - 1]
    count = count + 2
  end
end
if #names > 0 then
  redis.call('ZREMRANGEBYRANK', index, 0, #names - 1)
end
if count > 0 then
  redis.call('ZADD', index, unpack(scores))
end
return cmsgpack.pack({ due, values, first_end })
