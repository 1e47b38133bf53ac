-- Makes a group, where it is new: it is told what is put on the stream from now on.
--
-- KEYS      as of subscriber_prelude.lua
-- ARGV[2]   the group
-- Returns 1 where it was new, else 0.
--
-- A stream leaves after a silence, with its groups. So they are also in `groups`, which stays: one that is known and not
-- on the stream has missed all that is there.

local was_known = redis.call('SADD', groups, ARGV[2]) == 0
local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[2], was_known and '0' or '$', 'MKSTREAM')
if made.err then
    return string.find(made.err, 'BUSYGROUP', 1, true) and 0 or made
end
-- As with each entry: a stream that nothing is put on would stay for ever.
redis.call('PEXPIRE', stream, integer(retention))
return 1
