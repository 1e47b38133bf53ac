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
