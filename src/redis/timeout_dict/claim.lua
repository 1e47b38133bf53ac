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
