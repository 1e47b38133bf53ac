-- Puts back a removed entry that did not reach the caller, unless the key has an entry again. If it was leased, it is
-- due, as the removal has made the lease void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- ARGV[3]         its former state, as returned by remove.lua
-- ARGV[4]         and the following: its value, as `write` of the layout takes it
-- Returns 1 if it did, else 0.

local key, name = ARGV[2], KEYS[#KEYS]
if exists(name) then
  return 0
end
local at, failures, dead_at, reason = string.match(ARGV[3], '^(%S+) (%d+) (%S+) ?(.*)$')
allow_full_server()
redis.call('ZADD', index, unleased(at, now), key)
if failures ~= '0' then
  fail(key, failures)
end
if dead and dead_at ~= '-' then
  redis.call('ZADD', dead, unleased(dead_at, now), key)
end
if reason ~= '' then
  write_reason(key, reason)
end
write(name, 4)
return 1
