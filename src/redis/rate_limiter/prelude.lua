-- Common beginning of the scripts of the three windows: their arguments, the clock, and the share of the remaining quota
-- that a process may reserve. The file of a window follows, and implements all operations. This changes nothing itself.
--
-- KEYS[1]   the state of one subject: its charges to all limits
-- ARGV[1]   one string. 'c' for a check, 'p' for a peek or 'd' for a debt; the cost; then for each limit its quota, per
--           and step. Or 'r' for a refund; the creation time of the charged state; then for each limit the position and
--           the amount of the charge, or other numbers of it. Or 'v' for a reservation: as a check, and at the end the
--           number of units to draw ahead, and the time for which they may be admitted. Or 'b', which gives a part of a
--           reservation back: as a refund
-- Returns, of a check, 0 and the creation time of the state; or, if denied, the index of the limit with the longest
-- wait, counted from 1, and that wait. Then for each limit the position of its charge, the remaining units, and the
-- time until more remain (-1 if all do), or numbers to compute these from. All limits are charged, or none; a denial
-- charges nothing. A peek is a check that does not charge. A debt is charged even beyond a quota, and its reply has no
-- meaning. A refund returns 1, or 0 if there was nothing to refund.
--
-- A reservation returns the number of units drawn ahead, and then the reply of a check of the cost and these units. They
-- are at most a part of what is left, so that processes share a small quota. If there are any, they and the cost are
-- charged as one call at the time at which the last of them may be admitted: a call that counts from the time of drawing
-- on would leave the window before some of its units do. So states have calls of the future, but never of later than
-- they may be admitted, or than another call of the state. The time of a reservation is at most a tenth of each limit
-- that it is checked by. Other limits of the key may be shorter: for each limit, no call is made later than a tenth of
-- its per ahead. So it never counts for longer than its per and that time.
--
-- A state of another window, from which the limiter was changed, counts as missing: the first charge replaces it. The
-- first two bytes of a state name its window.
--
-- This runs at every check, so it creates as few tables, strings and functions as possible. Numbers are passed,
-- returned and stored as doubles of eight bytes in one string: Lua has no other numbers, and many of them are read by
-- one call. Arguments of commands are strings, since the server takes as long to format a number as to execute a
-- command. The time of expiry of a key is stored in its state too, and set again only if it has to be later.
--
-- All times are microseconds of the server, with 51 bits, so they are exact as numbers. They never go back for one
-- subject: `now` is at least the time of its last charge. If the clock is behind that (after a failover to a server
-- with another clock, or a correction), all times of the state are moved back with it, and it gets a new creation time.
-- So no caller waits longer than a window because of it, and earlier charges cannot be refunded at the expense of later
-- ones.

local key, args = KEYS[1], ARGV[1]
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
-- The quota, per and step are those of the first limit, which most calls have alone; of no meaning for a refund.
local verb, cost, quota, per, step = unpack(#args < 33 and '<c1d' or '<c1dddd', args)
local limits = (#args - 9) / 24
-- Units to draw ahead, and the time from now until the call counts as made. A reservation sets both to zero if nothing
-- can be drawn: it is then a check.
local ahead, lead = 0, 0
if verb == 'v' then
  ahead, lead = unpack('<dd', args, #args - 15)
  limits = (#args - 25) / 24
end
-- The parts of what is left that is drawn at most, and of its per by which a limit counts a call ahead at most.
local SHARE, LEAD_SHARE = 8, 10
local is_part = verb == 'b'
if is_part then verb = 'r' end
if verb == 'r' then
  -- Changes nothing: a full server refuses commands that may need memory, unless the script has already called another
  -- one that writes.
  call('PEXPIREAT', key, '1', 'GT')
end
local foreign = 'WRONGTYPE the key was not written by a rate limiter'

