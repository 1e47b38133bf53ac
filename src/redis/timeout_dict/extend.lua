local key = ARGV[2]
if not holds(key, ARGV[3]) then
  return false
end
local lease_end = lease_end_in(ARGV[4])
redis.call('ZADD', index, score(lease_end), key)
return lease_end
