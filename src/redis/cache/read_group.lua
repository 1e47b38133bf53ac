-- One poll of a subscriber of a group, in one shard: applies its acknowledgements, moves expired entries to the stream,
-- and reads events that are new or were not acked within their lease.
--
-- KEYS      as in subscriber_prelude.lua
-- ARGV[2]   the group
-- ARGV[3]   the lease in milliseconds
-- ARGV[4]   maximum number of events to read; 0 to read none
-- ARGV[5]   1 to trim the stream
-- ARGV[6]   id of the counts when the subscriber joined the group or last read
-- ARGV[7]   number of failed attempts after which an event is not delivered again
-- ARGV[8]   id of the caller's lease on the number of missed events
-- ARGV[9]   HELD to get this lease or renew it, RECEIVED if the subscriber has received the number, or RETURNED to give
--           it back
-- ARGV[10]  number of events that the caller had to give back, but which it held alone: they are missed
-- ARGV[11]  number of ids that follow of events that are acked,
-- ARGV[12]  then the number of those still held: all that the caller holds, if its leases may have expired,
-- ARGV[13]  then the number of those given back
-- ARGV[14]  and the following: these ids; after each id that is given back, its number of failed attempts, and after how
--           many milliseconds other subscribers may get it
-- Returns the time, entries, the number of failed attempts of each, whether more can be read immediately, the stream's
-- version, the number of events that the group had leased, the id of the counts, the number of missed events that the
-- caller has leased, 1 if the group was removed, and the ids of those still held that were trimmed from the stream: from
-- now on, the caller holds them alone.
--
-- All subscribers are one consumer, `fleeting`. Redis records when an entry was last delivered, and the idle time since
-- then is its lease. So a subscriber leaves no consumer behind that would have to be deleted. Redis also counts the
-- deliveries of an entry; here this is one more than its failed attempts.

local group, lease, limit, max_attempts = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[7])
local missed_lease, missed_state = ARGV[8], ARGV[9]
local acked, held, returned = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local held_from, returned_from = 14 + acked, 14 + acked + held
local counts_id = open_counts()
local missed, leased_count, trimmed = tonumber(ARGV[10]), 0, {}

-- Calls `visit` with the first and the last position of parts of ARGV, since Lua passes at most about 8,000 arguments.
local function each_part(from, to, visit)
    for first = from, to, 1000 do visit(first, math.min(first + 999, to)) end
end

-- Sets the idle time of leased events: to zero, to renew their leases; to a lease, so that they expire; or to a part of
-- one, so that they expire later. Returns the ids of those that are leased and in the stream. The group may be missing,
-- if the stream has expired; this error must not stop the script.
local function set_idle(ids, idle, ...)
    local call = { 'XCLAIM', stream, group, 'fleeting', 0, unpack(ids) }
    for _, option in ipairs({ 'IDLE', idle, 'JUSTID', ... }) do call[#call + 1] = option end
    return redis.pcall(unpack(call))
end

-- Records the number of leased events, of which subscribers learn if the stream is lost.
local function record_leased()
    local pending = redis.pcall('XPENDING', stream, group)
    if pending.err then return pending end
    if pending[1] ~= read_count('leased:' .. group) then
        redis.call('HSET', counts, 'leased:' .. group, pending[1])
    end
    -- At least two renewals.
    if pending[1] > 0 then keep_stream(lease) end
    return pending
end

-- Adds the events that this script has missed to those of the group, and leases their number to one subscriber until
-- that has received it, as if it were an event. Returns the number that the caller has leased.
local function lease_missed()
    local number = read_count('missed:' .. group)
    if missed > 0 then number = redis.call('HINCRBY', counts, 'missed:' .. group, missed) end
    local field = 'reporting:' .. group
    local leased, till, holder = string.match(redis.call('HGET', counts, field) or '', '^(%d+) (%d+) (%S+)$')
    if holder == missed_lease and missed_state == 'RECEIVED' then
        redis.call('HDEL', counts, field)
        return 0
    elseif holder == missed_lease and missed_state == 'RETURNED' or holder ~= missed_lease and holder
        and now >= tonumber(till) then
        redis.call('HDEL', counts, field)
        number, holder = redis.call('HINCRBY', counts, 'missed:' .. group, leased), nil
    end
    if not holder and number > 0 and missed_state == 'HELD' and limit > 0 then
        redis.call('HDEL', counts, 'missed:' .. group)
        leased, holder = integer(number), missed_lease
    end
    if holder ~= missed_lease then return 0 end
    redis.call('HSET', counts, field, leased .. ' ' .. integer(now + lease) .. ' ' .. holder)
    return tonumber(leased)
end

local function reply(entries, failures, more, version, leased_missed, is_removed)
    return { math.floor(now), entries, failures, more and 1 or 0, version, leased_count, counts_id, leased_missed,
        is_removed and 1 or 0, trimmed }
end

local function parts_of(id)
    local milliseconds, number = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(milliseconds), tonumber(number)
end

-- Renews the leases of events. Those that were trimmed cannot be renewed: the server would drop them as if they were
-- acked, and they would not be missed if the caller does not receive them.
local function renew(ids)
    local first, kept = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1], {}
    local first_ms, first_number = parts_of(first and first[1] or '18446744073709551615-0')
    for _, id in ipairs(ids) do
        local ms, number = parts_of(id)
        if ms > first_ms or ms == first_ms and number >= first_number then
            kept[#kept + 1] = id
        elseif redis.pcall('XACK', stream, group, id) == 1 then
            -- Not if another subscriber has acked it since its lease expired.
            trimmed[#trimmed + 1] = id
        end
    end
    if #kept > 0 then set_idle(kept, 0) end
end

each_part(14, held_from - 1, function(first, last)
    redis.call('XACK', stream, group, unpack(ARGV, first, last))
end)
each_part(held_from, returned_from - 1, function(first, last)
    renew({ unpack(ARGV, first, last) })
end)
for at = returned_from, returned_from + 3 * returned - 1, 3 do
    local id, failures, delay = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    -- Available to other subscribers after the delay, or after a lease if that is sooner or the event is dead.
    local idle = failures < max_attempts and math.max(0, lease - delay) or 0
    -- Not pending if another subscriber has acked it since its lease expired: then it is not missed, even if the stream
    -- was trimmed.
    local was_pending = redis.pcall('XPENDING', stream, group, id, id, 1)
    local found = set_idle({ id }, idle, 'RETRYCOUNT', failures + 1)
    if not found.err and #found == 0 and #was_pending == 1 then missed = missed + 1 end
end
if returned > 0 and redis.call('EXISTS', stream) == 1 then bump_stream_version() end

if limit == 0 then
    local leased_missed = lease_missed()
    record_leased()
    -- Not the new id if the server has lost its data: the next read has to notice that, and to join the group again.
    counts_id = ARGV[6]
    return reply({}, {}, false, '', leased_missed, false)
end

-- Joins the group again if it was lost; returns whether it did.
local function rejoin()
    restore_groups()
    if redis.call('SISMEMBER', groups, group) == 1 then return true end
    if counts_id == ARGV[6] then return false end
    -- The server has lost its data, not only this group.
    redis.call('SADD', groups, group)
    keep_counts()
    redis.call('XGROUP', 'CREATE', stream, group, '0')
    return true
end

local is_all = move_expired(limit)
local pending = redis.pcall('XPENDING', stream, group)
if pending.err and string.find(pending.err, 'NOGROUP', 1, true) then
    if not rejoin() then return reply({}, {}, false, '', 0, true) end
elseif pending.err then
    return pending
else
    leased_count = pending[1]
end

local entries, failures, from = {}, {}, '-'
local function read_idle(most)
    local idle = redis.call('XPENDING', stream, group, 'IDLE', lease, from, '+', most)
    for _, event in ipairs(idle) do
        local id, attempts = event[1], event[4] - 1
        from = '(' .. id
        if attempts >= max_attempts then
            -- It is kept until the retention has passed, and examined once per lease.
            if #set_idle({ id }, 0, 'RETRYCOUNT', event[4]) == 0 then missed = missed + 1 end
        else
            local claimed = redis.call('XCLAIM', stream, group, 'fleeting', 0, id, 'RETRYCOUNT', event[4])
            if claimed[1] then
                entries[#entries + 1], failures[#failures + 1] = claimed[1], attempts
            else
                -- Not held by the caller, whose leases were renewed before.
                missed = missed + 1
            end
        end
    end
    return #idle < most
end
local is_known = counts_id == ARGV[6]
local seen_before = read_count('read:' .. group)
local count_missed, seen = miss_counter(seen_before), seen_before
local function count(entry)
    local more
    more, seen = count_missed(entry)
    missed = missed + (is_known and more or 0)
end
local are_all_idle = leased_count == 0 or gather(entries, limit, read_idle)
local are_all_new = are_all_idle and gather(entries, limit, function(most)
    local new = redis.call('XREADGROUP', 'GROUP', group, 'fleeting', 'COUNT', most, 'STREAMS', stream, '>')
    local some = new and new[1][2] or {}
    for _, entry in ipairs(some) do
        entries[#entries + 1], failures[#failures + 1] = entry, 0
        count(entry)
    end
    return #some < most
end)
if are_all_new then count() end
if seen ~= seen_before then redis.call('HSET', counts, 'read:' .. group, seen) end
local leased_missed = lease_missed()
record_leased()
if ARGV[5] == '1' then trim() end
return reply(entries, failures, not (is_all and are_all_new), read_stream_version(), leased_missed, false)
