-- The beginning of change.lua, before tags.lua, which creates functions that most changes do not need: those of values
-- without tags end here.
--
-- KEYS, ARGV and the return value are those of change.lua.

if ARGV[2] == 'KEEP' then
    -- With a short TTL (`LONG_TTL_MILLIS`), the value may expire before a refresh in progress ends, which would not
    -- notice it. The key is not in KEYS, because most values do not need it. First, so that the script can be repeated
    -- if the key is on another node.
    local ttl, shard = redis.call('PTTL', KEYS[1]), string.match(KEYS[1], '^[^}]*}')
    if ttl >= 0 and ttl < 60000 then redis.call('UNLINK', shard .. '.load' .. string.sub(KEYS[1], #shard + 1)) end
end
-- Removes the load of a value that a command with this reply has changed. A `GETEX` without a value and a `SET NX` with
-- one change nothing; both return nil, as do `GETDEL` and `SET GET`, which take precedence over a load in any case.
local function remove_load(answer)
    local is_changed = answer and answer ~= 0 or not answer and ARGV[3] ~= 'GETEX' and ARGV[5] ~= 'NX'
    if KEYS[2] and is_changed then redis.call('UNLINK', KEYS[2]) end
end

if redis.pcall('GETRANGE', KEYS[1], 0, 3) ~= '\193tag' then
    local answer = redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))
    remove_load(answer)
    return answer
end
