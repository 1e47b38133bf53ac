-- Puts a value at a key, with a TTL. Where a dead value was there that nobody was told of, it is told first.
--
-- KEYS      as in prelude.lua, one record
-- ARGV[2]   the key
-- ARGV[3]   its new value
-- ARGV[4]   the TTL in milliseconds; empty for none
-- ARGV[5]   SET, NX (only where no live value is) or KEEPTTL (the TTL is for a value that replaces none)
-- Returns the live value that it replaced, or false; of NX, 1 where it was put, else 0.

local key, value, how = ARGV[2], ARGV[3], ARGV[5]
local old, deadline = look(record, key)
if old and is_dead(deadline) then
    -- Before anything of the new value.
    tell(key, old, deadline)
    old = nil
end
if old and how == 'NX' then return 0 end
if not old or how ~= 'KEEPTTL' then deadline = after(tonumber(ARGV[4])) end
redis.call('SET', record, value)
keep(record, key, value, deadline)
if how == 'NX' then return 1 end
return old or false
