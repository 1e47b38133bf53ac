-- Removes an entry, which makes a claim on it void.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the key
-- Returns its state for put_back.lua (its score, the number of its failures, since when it is a dead letter or `-`, and
-- its reason) and its value; or false.

local key, name = ARGV[2], KEYS[#KEYS]
local value = read(name)
local at, dead_at = score_of(key), dead_since(key)
local failures, reason = failures_of({ key })[1] or 0, reason_of(key)
redis.call('ZREM', index, key)
clear_failures({ key })
redis.call('UNLINK', name)
local state = table.concat({ at, failures, dead_at and score(dead_at) or '-', reason }, ' ')
return value and { state, value }
