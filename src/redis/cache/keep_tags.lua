-- Checks the tags of a value that a plain command has read and given another TTL.
--
-- KEYS[1]   its record
-- ARGV[1]   as in prelude.lua
-- ARGV[2]   the beginning of the value, with its tags
-- ARGV[3]   the TTL in milliseconds; empty for none
-- Returns 1 if the value is live, else 0.

if not live(ARGV[2], KEYS[1]) then return 0 end
keep_tags(ARGV[2], KEYS[1], tonumber(ARGV[3]))
return 1
