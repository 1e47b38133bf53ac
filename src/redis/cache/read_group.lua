-- One poll, at one shard, of a subscriber of a group: takes what it says of its events, moves what is due to
-- the stream, and gives it what is new, and what was not acked within its lease.
--
-- KEYS      as in prelude.lua, no record
-- ARGV[2]   the group
-- ARGV[3]   the lease in milliseconds
-- ARGV[4]   how many events there is room for; 0 to take none
-- ARGV[5]   the cursor: where to go on looking for leases that are over
-- ARGV[6]   1 where the stream is to be trimmed
-- ARGV[7]   how many ids of events follow that are acked,
-- ARGV[8]   then how many that are given back,
-- ARGV[9]   then how many that are still held
-- ARGV[10]  and what follows: these ids
-- Returns the time, entries, whether more may be had at once, and the next cursor.
--
-- All subscribers are one consumer, `fleeting`: Redis counts since when an entry was delivered, whoever has it,
-- and that is its lease. So subscribers that come and go leave no consumers behind.

local group, lease, room, cursor = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local function ids(from, count)
    local ids = {}
    for at = from, from + count - 1 do ids[#ids + 1] = ARGV[at] end
    return ids
end

local acked, given_back, held = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

if acked > 0 then
    redis.call('XACK', stream, group, unpack(ids(10, acked)))
end

-- Sets for how long they have been held: as long as a lease, so that it is over, or not at all. A group that is
-- gone has none, for which an error is no reason to stop.
local function hold(ids, idle)
    if #ids == 0 then return end
    local call = { 'XCLAIM', stream, group, 'fleeting', 0, unpack(ids) }
    for _, option in ipairs({ 'IDLE', idle, 'JUSTID' }) do call[#call + 1] = option end
    redis.pcall(unpack(call))
end
hold(ids(10 + acked, given_back), lease)
hold(ids(10 + acked + given_back, held), 0)

if room == 0 then return { math.floor(now), {}, 0, cursor } end

local is_all = move_due(room)
local over = redis.pcall('XAUTOCLAIM', stream, group, 'fleeting', lease, cursor, 'COUNT', room)
if over.err then
    -- With the stream its groups have left, as nothing came for the retention. All that is on it now is new.
    if string.find(over.err, 'NOGROUP', 1, true) then
        redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
        redis.call('PEXPIRE', stream, whole(retention))
        over = { '0-0', {} }
    else
        return over
    end
end
local entries = over[2]
if #entries < room then
    local new = redis.call('XREADGROUP', 'GROUP', group, 'fleeting', 'COUNT', room - #entries,
        'STREAMS', stream, '>')
    for _, entry in ipairs(new and new[1][2] or {}) do entries[#entries + 1] = entry end
end
if ARGV[6] == '1' then trim() end
local more = not is_all or #entries >= room or over[1] ~= '0-0'
return { math.floor(now), entries, more and 1 or 0, over[1] }
