-- One poll of a broadcast subscriber, in one shard: moves expired entries to the stream and reads it from a position.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   maximum number of events to return
-- ARGV[3]   id of the last event that was read; empty to get the end of the stream
-- ARGV[4]   number of events that had been added to the stream by then
-- ARGV[5]   1 to trim the stream
-- Returns the time, entries, whether more can be read immediately, the stream's version, the next ARGV[3] and ARGV[4],
-- and the number of missed events, which were trimmed before they were read.

local limit, after_id, seen = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local is_all = move_expired(limit)
local added, length, last = 0, 0, '0-0'
if redis.call('EXISTS', stream) == 1 then
    local info = named(redis.call('XINFO', 'STREAM', stream))
    added, length, last = info['entries-added'], info['length'], info['last-generated-id']
end
if after_id == '' then
    -- Entries that have expired so far are for earlier subscribers only.
    return { math.floor(now), {}, is_all and 0 or 1, read_stream_version(), last, added, 0 }
end

local first, missed, from = added - length, 0, '(' .. after_id
if added < seen then
    -- A new stream: the old one has expired.
    seen, from = first, '-'
elseif first > seen then
    missed, seen, from = first - seen, first, '-'
end
local entries = {}
local are_all = gather(entries, limit, function(count)
    local some = redis.call('XRANGE', stream, from, '+', 'COUNT', count)
    extend(entries, some)
    if #some > 0 then from = '(' .. some[#some][1] end
    return #some < count
end)
if ARGV[5] == '1' then trim() end
if #entries > 0 then after_id = entries[#entries][1] end
-- At most the count of the current stream, which may have started again at zero.
seen = math.min(seen + #entries, added)
return { math.floor(now), entries, is_all and are_all and 0 or 1, read_stream_version(), after_id, seen, missed }
