-- ARGV[2]: the key. ARGV[3]: what to read of it, VALUE or TTL, which is answered as by PTTL.

local value, deadline = look(record, ARGV[2])
if is_dead(deadline) then value = nil end
if ARGV[3] == 'VALUE' then return value or false end
if not value then return -2 end
if not deadline then return -1 end
return math.max(1, math.floor(deadline - now))
