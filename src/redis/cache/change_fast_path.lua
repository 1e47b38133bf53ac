-- Fast path of most changes, of values without tags. It precedes tags.lua, which creates functions that it does not need.
--
-- KEYS, ARGV and the return value are those of change.lua.

if redis.pcall('GETRANGE', KEYS[1], 0, 3) ~= '\193tag' then
    local answer = redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))
    if KEYS[2] and answer ~= 0 then redis.call('UNLINK', KEYS[2]) end
    return answer
end
