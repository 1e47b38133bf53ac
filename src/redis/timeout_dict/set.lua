local key, name = ARGV[2], stem .. ARGV[2]
local old = read(name)
redis.call('ZADD', index, deadline_in(ARGV[3]), key)
write(name, 4)
return old
