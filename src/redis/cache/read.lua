-- Reads the live value of a key, or its TTL. Changes nothing.
--
-- KEYS      as in prelude.lua, one record
-- ARGV[2]   the key
-- ARGV[3]   VALUE or TTL
-- Returns the value or false; or the TTL as PTTL does: in milliseconds, -1 without one, -2 without a live value.

local value, deadline = look(record, ARGV[2])
if is_dead(deadline) then value = nil end
if ARGV[3] == 'VALUE' then return value or false end
if not value then return -2 end
if not deadline then return -1 end
return math.max(1, math.floor(deadline - now))
