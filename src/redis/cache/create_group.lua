-- Creates a group if it is new. A new group gets the events that are added to the stream from now on.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   the group
-- Returns the id of the counts.
--
-- Redis deletes an idle stream with its groups when it expires. So the names of the groups are also kept in the set
-- `groups`, which does not expire.

local group = ARGV[2]
local id = open_counts()
restore_groups()
local is_new = redis.call('SADD', groups, group) == 1
keep_counts()
if is_new then
    local made = redis.pcall('XGROUP', 'CREATE', stream, group, '$')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
    -- From before its creation.
    drop_lost(math.huge)
    -- From now on, it does not expire.
    if redis.call('EXISTS', index) == 1 then
        set_index_expiry(NEVER_MS)
    else
        redis.call('DEL', earliest_deadline)
    end
end
redis.call(is_new and 'HSET' or 'HSETNX', counts, 'read:' .. group, read_count('events'))
return id
