-- Removes an entry, which makes a claim on it void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- Returns its state for put_back.lua (its score, the number of its failures, and since when it is a dead letter or `-`)
-- and its value; or false.

local key, name = ARGV[2], KEYS[#KEYS]
local value = read(name)
local at, dead_at = score_of(key), dead_since(key)
local failures = failures_of({ key })[1] or 0
redis.call('ZREM', index, key)
clear_failures({ key })
redis.call('UNLINK', name)
return value and { at .. ' ' .. failures .. ' ' .. (dead_at and score(dead_at) or '-'), value }
