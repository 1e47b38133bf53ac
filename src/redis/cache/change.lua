-- Runs a command that changes a value or its TTL, without events. A value of which a tag was removed counts as missing.
--
-- KEYS[1]   the record
-- KEYS[2]   its load, which a change of the value ends, and which gets a new deadline; missing if a load in progress
--           notices the change by itself. One key only, if possible: in a slot that is being moved, a script with several keys has to wait.
-- ARGV[1]   empty: see tags.lua
-- ARGV[2]   the TTL in milliseconds that the command gives the value, empty for none; NEW if it replaces or removes it;
--           KEEP if it replaces it and keeps its TTL
-- ARGV[3]   the command
-- ARGV[4]   and the following: its arguments after the key
-- Returns the reply of the command. If this is the old value, its tags are checked.

local record = KEYS[1]
-- The value has tags: change_fast_path.lua has changed all others.
local value = live(redis.call('GET', record), record)
if not value then redis.call('UNLINK', record) end
local answer = redis.call(ARGV[3], record, unpack(ARGV, 4))
note_change(answer)
if not value or not answer or answer == 0 then return answer end
local reply = answer == value and checked(value, record) or answer
if ARGV[2] ~= 'NEW' and ARGV[2] ~= 'KEEP' then keep_tags(value, record, tonumber(ARGV[2])) end
return reply
