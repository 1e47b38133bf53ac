-- Takes an entry out. A claim on it is void then.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the key
-- Returns its score and its value, or false.

local key, name = ARGV[2], record_prefix .. ARGV[2]
local value = read(name)
local at = score_of(key)
redis.call('ZREM', index, key)
redis.call('UNLINK', name)
return value and { at, value }
