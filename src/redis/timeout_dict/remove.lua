-- Takes an entry out. A claim on it is void then.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- Returns what it was, for put_back.lua: its score, how often it failed, and since when it is dead or `-`; and its
-- value. Or false.

local key, name = ARGV[2], KEYS[#KEYS]
local value = read(name)
local at, dead_at = score_of(key), dead_since(key)
local failures = failures_of({ key })[1] or 0
redis.call('ZREM', index, key)
clear_failures({ key })
redis.call('UNLINK', name)
return value and { at .. ' ' .. failures .. ' ' .. (dead_at and score(dead_at) or '-'), value }
