-- Writes values at keys of one shard. If a key occurs twice, the last value wins.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   and the following: for each key the key, the value, and its TTL in milliseconds; empty for none
-- Returns nothing.

for at = 1, (#ARGV - 1) / 3 do
    local record, shadow, load = KEYS[3 * at - 2], KEYS[3 * at - 1], KEYS[3 * at]
    put(record, shadow, load, ARGV[3 * at - 1], ARGV[3 * at], tonumber(ARGV[3 * at + 1]))
end
