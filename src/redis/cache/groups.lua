-- Returns the names of the groups.
--
-- KEYS      as in subscriber_prelude.lua

-- Forgets groups that another program has destroyed.
if redis.call('EXISTS', stream) == 1 then restore_groups() end
return redis.call('SMEMBERS', groups)
