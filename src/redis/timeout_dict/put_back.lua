-- What was taken in vain, with its deadline, or with one in so long, unless there is an entry again.
local key, name = ARGV[2], stem .. ARGV[2]
if has(name) then
  return 0
end
redis.call('ZADD', index, ARGV[3] ~= '' and again(ARGV[3]) or deadline_in(ARGV[4]), key)
write(name, 5)
return 1
