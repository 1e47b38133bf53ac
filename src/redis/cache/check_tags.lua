-- Checks the tags of a value that was read by a plain command.
--
-- KEYS[1]   its record
-- ARGV[1]   as in prelude.lua
-- ARGV[2]   the beginning of the value, with its tags
-- ARGV[3]   the TTL in milliseconds that the command has given it, empty for none; missing if it has given it none
-- Returns 1 if the value is live, else 0.

if not live(ARGV[2], KEYS[1]) then return 0 end
if ARGV[3] then keep_tags(ARGV[2], KEYS[1], tonumber(ARGV[3])) end
return 1
