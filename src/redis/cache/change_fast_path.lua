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
-- A load in progress notices a new deadline, which its value will have: see keep_load.lua.
local sets_deadline = KEYS[2] and ARGV[2] ~= 'NEW' and ARGV[2] ~= 'KEEP'
local last = sets_deadline and redis.call('PEXPIRETIME', KEYS[1])
-- Notes that a command with this reply has changed a value: ends its load, or gives it the deadline. A `GETEX` without a
-- value and a `SET NX` with one change nothing; both return nil, as do `GETDEL` and `SET GET`, which take precedence over
-- a load in any case.
local function note_change(answer)
    local is_changed = answer and answer ~= 0 or not answer and ARGV[3] ~= 'GETEX' and ARGV[5] ~= 'NX'
    if not KEYS[2] or not is_changed then return end
    if sets_deadline then
        keep_load(KEYS[1], KEYS[2], last)
    else
        redis.call('UNLINK', KEYS[2])
    end
end

if redis.pcall('GETRANGE', KEYS[1], 0, 3) ~= '\193tag' then
    local answer = redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))
    note_change(answer)
    return answer
end
