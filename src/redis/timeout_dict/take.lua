-- Takes the oldest entries that are due out of a shard. One whose record is of another type stays, and is due
-- again later: nobody here can give it to anyone, and it must not stand in the way of all others.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            until when, as of peek_due.lua
-- ARGV[3]            how many at most
-- ARGV[4]            in how many microseconds one of another type is due again
-- Returns, as MessagePack: keys and scores in turns; for each key its value, false, or 1 (see `first_due`); and false.

local due, names, values = first_due(ARGV[2], ARGV[3])
if #names > 0 then
  redis.call('ZREMRANGEBYRANK', index, 0, #names - 1)
end
local records = {}
for i, name in ipairs(names) do
  if values[i] == 1 then
    redis.call('ZADD', index, deadline_in(ARGV[4]), due[2 * i - 1])
  elseif values[i] then
    records[#records + 1] = name
  end
end
if #records > 0 then
  redis.call('UNLINK', unpack(records))
end
return cmsgpack.pack({ due, values, false })
