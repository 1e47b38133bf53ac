-- Creates a group if it is new. A new group gets the events that are added to the stream from now on.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   the group
-- Returns 1 if it was new, else 0.
--
-- Redis deletes an idle stream with its groups when it expires. So the names of the groups are also kept in the set
-- `groups`, which does not expire. A group that is in the set but not on the stream starts at the first entry.

local was_known = redis.call('SADD', groups, ARGV[2]) == 0
local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[2], was_known and '0' or '$', 'MKSTREAM')
if made.err then
    return string.find(made.err, 'BUSYGROUP', 1, true) and 0 or made
end
-- As in `bump_stream_version`: without an expiry, a stream without events would stay forever.
redis.call('PEXPIRE', stream, integer(retention))
return 1
