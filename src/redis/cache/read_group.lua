-- One poll, at one shard, of a subscriber of a group: takes what it says of its events, moves what is due to
-- the stream, and gives it what is new, and what was not acked within its lease.
--
-- KEYS      as of subscriber_prelude.lua
-- ARGV[2]   the group
-- ARGV[3]   the lease in milliseconds
-- ARGV[4]   how many events there is room for; 0 to take none
-- ARGV[5]   1 where the stream is to be trimmed
-- ARGV[6]   how many ids of events follow that are acked,
-- ARGV[7]   then how many that are given back,
-- ARGV[8]   then how many that are still held
-- ARGV[9]   and what follows: these ids
-- Returns the time, entries, whether more may be had at once, what `told` is, and how many events of the group are
-- lent.
--
-- All subscribers are one consumer, `fleeting`: Redis counts since when an entry was delivered, whoever has it,
-- and that is its lease. So subscribers that come and go leave no consumers behind.

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

-- Sets for how long they have been held: as long as a lease, so that it is over, or not at all. A group that is
-- gone has none, for which an error is no reason to stop.
local function hold(ids, idle)
    if #ids == 0 then return end
    local call = { 'XCLAIM', stream, group, 'fleeting', 0, unpack(ids) }
    for _, option in ipairs({ 'IDLE', idle, 'JUSTID' }) do call[#call + 1] = option end
    redis.pcall(unpack(call))
end
hold(ids(9 + acked, returned), lease)
hold(ids(9 + acked + returned, held), 0)
-- What is given back is news to the others.
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
    -- With the stream its groups have left, as nothing came for the retention. All that is on it now is new.
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
