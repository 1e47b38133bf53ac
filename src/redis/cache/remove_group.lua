-- Removes a group. Its subscribers find out with their next poll.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   the group
-- Returns 1 if there was such a group, else 0.

local group = ARGV[2]
local was_known = redis.call('SISMEMBER', groups, group) == 1
forget_group(group)
local destroyed = redis.call('EXISTS', stream) == 1 and redis.call('XGROUP', 'DESTROY', stream, group)
if was_known then
    redis.call('SET', stream_version, time[1] .. '.' .. time[2], 'PX', integer(retention))
    -- Without groups, the index expires.
    if redis.call('EXISTS', groups) == 0 and redis.call('EXISTS', index) == 1 then
        local last = redis.call('ZRANGE', index, 0, 0, 'REV', 'WITHSCORES')[2]
        set_index_expiry(math.max(index_expiry(tonumber(last)), math.floor(now) + 1))
    end
end
return (was_known or destroyed == 1) and 1 or 0
