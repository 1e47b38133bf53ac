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

local group, lease, room = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local function ids(from, count)
    local ids = {}
    for at = from, from + count - 1 do ids[#ids + 1] = ARGV[at] end
    return ids
end

local acked, given_back, held = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

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
hold(ids(9 + acked, given_back), lease)
hold(ids(9 + acked + given_back, held), 0)
-- What is given back is news to the others.
if given_back > 0 and redis.call('EXISTS', stream) == 1 then ring() end

if room == 0 then return { math.floor(now), {}, 0, '', 0 } end

local is_all = move_due(room)
local entries = {}
local function read_over(cursor)
    return function(count)
        local over = redis.call('XAUTOCLAIM', stream, group, 'fleeting', lease, cursor, 'COUNT', count)
        cursor = over[1]
        extend(entries, over[2])
        return cursor == '0-0'
    end
end
local lent = redis.pcall('XPENDING', stream, group)
if lent.err and string.find(lent.err, 'NOGROUP', 1, true) then
    -- With the stream its groups have left, as nothing came for the retention. All that is on it now is new.
    redis.call('SADD', groups, group)
    redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    redis.call('PEXPIRE', stream, whole(retention))
    lent = { 0 }
elseif lent.err then
    return lent
end
local are_all_over = lent[1] == 0 or gather(entries, room, read_over('0-0'))
local are_all_new = are_all_over and gather(entries, room, function(count)
    local new = redis.call('XREADGROUP', 'GROUP', group, 'fleeting', 'COUNT', count, 'STREAMS', stream, '>')
    local some = new and new[1][2] or {}
    extend(entries, some)
    return #some < count
end)
if ARGV[5] == '1' then trim() end
local more = not (is_all and are_all_new)
return { math.floor(now), entries, more and 1 or 0, news(), lent[1] }
