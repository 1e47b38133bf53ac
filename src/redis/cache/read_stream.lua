-- One poll of a broadcast subscriber, in one shard: moves expired entries to the stream and reads it from a position.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   maximum number of events to return
-- ARGV[3]   id of the last event that was read; empty to get the end of the stream
-- ARGV[4]   number of the last event that was read or missed
-- ARGV[5]   id of the counts from which this number is
-- ARGV[6]   1 to trim the stream
-- Returns the time, entries, whether more can be read immediately, the stream's version, the next ARGV[3] to ARGV[5],
-- and the number of missed events, which were lost before they were read.

local limit, after_id = tonumber(ARGV[2]), ARGV[3]

local counts_id = open_counts()
local is_all = move_expired(limit)
local last_id = '0-0'
if redis.call('EXISTS', stream) == 1 then
    last_id = named(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
end
if after_id == '' then
    -- Entries that have expired so far are for earlier subscribers only.
    local seen = read_count('events')
    return { math.floor(now), {}, is_all and 0 or 1, read_stream_version(), last_id, seen, counts_id, 0 }
end

-- A new stream may have lower ids, if the clock of a new server is behind.
local function is_before(id, other)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
    ms, other_ms = tonumber(ms), tonumber(other_ms)
    return ms < other_ms or ms == other_ms and tonumber(seq) < tonumber(other_seq)
end

-- If the counts were lost, nothing is known about the events before. If only the last events were lost, later ones have
-- their numbers.
local is_known = ARGV[5] == counts_id
local seen, missed = is_known and math.min(tonumber(ARGV[4]), read_count('events')) or 0, 0
if is_before(last_id, after_id) then
    -- The last entry that was read and that the server has not lost.
    local read = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    while is_known and read and number_of(read) > seen do
        read = redis.call('XREVRANGE', stream, '(' .. read[1], '-', 'COUNT', 1)[1]
    end
    after_id = is_known and read and read[1] or '0-0'
end
local count_missed = miss_counter(seen)
local function count(entry)
    local more
    more, seen = count_missed(entry)
    missed = missed + (is_known and more or 0)
end
local entries = {}
local are_all = gather(entries, limit, function(most)
    local some = redis.call('XRANGE', stream, '(' .. after_id, '+', 'COUNT', most)
    extend(entries, some)
    for _, entry in ipairs(some) do count(entry) end
    if #some > 0 then after_id = some[#some][1] end
    return #some < most
end)
if are_all then count() end
if ARGV[6] == '1' then trim() end
local more = not (is_all and are_all)
return { math.floor(now), entries, more and 1 or 0, read_stream_version(), after_id, seen, counts_id, missed }
