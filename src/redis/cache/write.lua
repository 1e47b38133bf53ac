-- ARGV[2], ARGV[3]: the key, its new value. ARGV[4]: the TTL in milliseconds; empty for none.
-- ARGV[5]: SET, NX (where no live value is; answers whether it did) or KEEPTTL.

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
