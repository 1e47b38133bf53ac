-- One look of a subscriber of a group, at one shard.
-- ARGV[2]: the group. ARGV[3]: its lease, in milliseconds. ARGV[4]: how many events there is room for.
-- ARGV[5]: where to go on looking for leases that are over. ARGV[6]: 1 where the stream is to be trimmed.
-- ARGV[7], ARGV[8], ARGV[9]: how many events follow that are acked, given back, and still held.
--
-- All subscribers are one consumer: whoever asks gets what is new, and what was not acked within its lease.

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

-- Sets for how long they have been held. A group that is gone has none.
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
