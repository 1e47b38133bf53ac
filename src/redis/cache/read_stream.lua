-- One poll, at one shard, of those who listen without a group: moves what is due to the stream and reads on.
--
-- KEYS      as of subscriber_prelude.lua
-- ARGV[2]   how many events to return at most
-- ARGV[3]   the id of the last one that was read; empty to learn where the stream ends now
-- ARGV[4]   how many had been added to the stream by then
-- ARGV[5]   1 where the stream is to be trimmed
-- Returns the time, entries, whether more may be had at once, what `told` is; then what ARGV[3] and ARGV[4] are to be
-- the next time, and how many were missed since: they left the stream before they were read.

local limit, after_id, seen = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local is_all = move_expired(limit)
local added, length, last = 0, 0, '0-0'
if redis.call('EXISTS', stream) == 1 then
    local info = named(redis.call('XINFO', 'STREAM', stream))
    added, length, last = info['entries-added'], info['length'], info['last-generated-id']
end
if after_id == '' then
    -- What was due is told to those who came before.
    return { math.floor(now), {}, is_all and 0 or 1, read_stream_version(), last, added, 0 }
end

local first, missed, from = added - length, 0, '(' .. after_id
if added < seen then
    -- Another stream: the one before was dropped, as nothing came for so long.
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
-- Never ahead of a stream that began anew.
seen = math.min(seen + #entries, added)
return { math.floor(now), entries, is_all and are_all and 0 or 1, read_stream_version(), after_id, seen, missed }
