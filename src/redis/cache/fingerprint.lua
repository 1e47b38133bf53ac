-- Fingerprint of a value and its deadline, used before lookup_lease.lua and publish.lua: writes by plain commands, and by
-- other programs, change it without removing the load.
local function fingerprint(record, value)
    return redis.sha1hex(value) .. redis.call('PEXPIRETIME', record)
end
