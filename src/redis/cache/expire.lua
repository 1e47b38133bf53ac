-- Gives the live value of a key another TTL if a condition holds. With a TTL of zero it expires, with an event.
--
-- KEYS      as in prelude.lua, of one key
-- ARGV[2]   the key
-- ARGV[3]   the TTL in milliseconds; empty for none
-- ARGV[4]   ALWAYS; NX, XX, GT or LT as in EXPIRE; EXTEND (adds to the remaining TTL); or GETEX
-- Returns 1 (for GETEX, the value) if it did, else false.

local key, ttl, how = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local at, had_expired = expire_if_due(key, shadow)
local value = not had_expired and live(redis.call('GET', record), record)
if not value then return false end
local last = redis.call('PEXPIRETIME', record)
local old = at or last >= 0 and last + 1 or nil
local new = deadline_in(ttl)
-- No deadline compares as an infinite one.
if how == 'EXTEND' then
    if not old then return false end
    new = ttl and old + ttl
elseif how == 'NX' and old or how == 'XX' and not old then
    return false
elseif how == 'GT' and not (old and (not new or new > old)) then
    return false
elseif how == 'LT' and not (new and (not old or new < old)) then
    return false
end
if new and has_expired(new) then
    redis.call('UNLINK', load)
    publish_event(key, event_value(value, record), new)
    redis.call('UNLINK', record)
    unindex(key, shadow)
elseif new then
    keep_tags(value, record, new - now)
    redis.call('PEXPIREAT', record, integer(new - 1))
    keep_load(record, load, last)
    index_value(key, shadow, not at and value, new)
else
    keep_tags(value, record, nil)
    redis.call('PERSIST', record)
    keep_load(record, load, last)
    if at then unindex(key, shadow) end
end
return how == 'GETEX' and checked(value, record) or 1
