-- Writes values at keys of one shard, with one TTL. If a key occurs twice, the last value wins.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   the TTL in milliseconds; empty for none
-- ARGV[3]   and the following: keys and values in turn
-- Returns nothing.

for at = 1, (#ARGV - 2) / 2 do
    local record, shadow, load = KEYS[3 * at - 2], KEYS[3 * at - 1], KEYS[3 * at]
    put(record, shadow, load, ARGV[2 * at + 1], ARGV[2 * at + 2], tonumber(ARGV[2]))
end
