-- One poll of a subscriber of a group, in one shard: applies its acknowledgements, moves expired entries to the stream,
-- and reads events that are new or were not acked within their lease.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   the group
-- ARGV[3]   the lease in milliseconds
-- ARGV[4]   maximum number of events to read; 0 to read none
-- ARGV[5]   1 to trim the stream
-- ARGV[6]   number of ids that follow of events that are acked,
-- ARGV[7]   then the number of those given back,
-- ARGV[8]   then the number of those still held
-- ARGV[9]   and the following: these ids
-- Returns the time, entries, whether more can be read immediately, the stream's version, and the number of events that
-- the group had leased.
--
-- All subscribers are one consumer, `fleeting`. Redis records when an entry was last delivered, and the idle time since
-- then is its lease. So a subscriber leaves no consumer behind that would have to be deleted.

local group, lease, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local function ids(from, count)
    local ids = {}
    for at = from, from + count - 1 do ids[#ids + 1] = ARGV[at] end
    return ids
end

local acked, returned, held = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

if acked > 0 then
    redis.call('XACK', stream, group, unpack(ids(9, acked)))
end

-- Sets the idle time of events: to the lease, so that it expires, or to zero, to renew it. The group may be missing, if
-- the stream has expired; this error must not stop the script.
local function hold(ids, idle)
    if #ids == 0 then return end
    local call = { 'XCLAIM', stream, group, 'fleeting', 0, unpack(ids) }
    for _, option in ipairs({ 'IDLE', idle, 'JUSTID' }) do call[#call + 1] = option end
    redis.pcall(unpack(call))
end
hold(ids(9 + acked, returned), lease)
hold(ids(9 + acked + returned, held), 0)
-- Events that are given back are available to other subscribers.
if returned > 0 and redis.call('EXISTS', stream) == 1 then bump_stream_version() end

if limit == 0 then return { math.floor(now), {}, 0, '', 0 } end

local is_all = move_expired(limit)
local entries = {}
local function read_idle(cursor)
    return function(count)
        local claimed = redis.call('XAUTOCLAIM', stream, group, 'fleeting', lease, cursor, 'COUNT', count)
        cursor = claimed[1]
        extend(entries, claimed[2])
        return cursor == '0-0'
    end
end
local leased_count = redis.pcall('XPENDING', stream, group)
if leased_count.err and string.find(leased_count.err, 'NOGROUP', 1, true) then
    -- The stream has expired with its groups. All events on the new stream are unread.
    redis.call('SADD', groups, group)
    redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    redis.call('PEXPIRE', stream, integer(retention))
    leased_count = { 0 }
elseif leased_count.err then
    return leased_count
end
local are_all_idle = leased_count[1] == 0 or gather(entries, limit, read_idle('0-0'))
local are_all_new = are_all_idle and gather(entries, limit, function(count)
    local new = redis.call('XREADGROUP', 'GROUP', group, 'fleeting', 'COUNT', count, 'STREAMS', stream, '>')
    local some = new and new[1][2] or {}
    extend(entries, some)
    return #some < count
end)
if ARGV[5] == '1' then trim() end
local more = not (is_all and are_all_new)
return { math.floor(now), entries, more and 1 or 0, read_stream_version(), leased_count[1] }
