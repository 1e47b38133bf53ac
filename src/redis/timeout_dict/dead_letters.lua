-- Reads dead letters of a shard, oldest first. Changes nothing.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         the score from which to read
-- ARGV[3]         number of letters to skip from that score on
-- ARGV[4]         maximum number of letters; 512 or less
-- ARGV[5]         number of value bytes after which to stop
-- Returns, as MessagePack: keys and scores in turn; the value of each key, false if it is not an entry, or 1 (see
-- `first_due`); the number of failed attempts of each; the reason of each or false; and whether there may be more.

local due, values, is_cut = first_due(dead, ARGV[2], ARGV[3], '+inf', ARGV[4], tonumber(ARGV[5]))
local keys = {}
for i = 1, #values do
  keys[i] = due[2 * i - 1]
end
local failures = failures_of(keys)
for i = 1, #keys do
  -- The last attempt is not counted in `failed`.
  failures[i] = (tonumber(failures[i] or 0) or 0) + 1
end
local found = reasons_of(keys, failures)
for i = 1, #keys do
  found[i] = found[i] or false
end
return cmsgpack.pack({ due, values, failures, found, is_cut or #keys == tonumber(ARGV[4]) })
