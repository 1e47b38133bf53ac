-- What the three windows begin with; the file of one of them follows, and has all three verbs. Changes nothing
-- by itself.
--
-- KEYS[1]   all that one subject has in use, of all its limits
-- ARGV[1]   one string: 'c' for a check, 'p' for a peek or 'd' for a debt, the cost, then for each limit its quota, per
--           and step; or 'r' for a refund, the birth of what was charged, then for each limit the mark and the amount of the charge
-- Returns, of a check, 0 and the birth of the state or, where it is denied, which limit it has to wait for and how
-- long; then for each limit the mark of its charge, what is left, and in how long more is (-1 where all is), or
-- what that can be told from. All limits are charged, or none, and a denial writes nothing. A peek is a check that
-- does not charge; a debt is one that is charged whether there is room or not, and tells nothing. A refund returns 1 or 0.
--
-- This runs with each check: it makes no more tables, strings and functions than it needs. Numbers go in and
-- out, and are kept, as doubles of eight bytes in one string: that is what Lua has, and reading many of them is
-- one call. What a command is given is a string, since to write a number takes the server as long as a command.
-- A key's time to leave is kept beside it, and said anew only where it has to be later.
--
-- All times are the server's microseconds, of 51 bits: as numbers they are exact. They never go back for one
-- subject: `now` is at least the time of its last charge. Where the clock is behind that (a failover to a server whose
-- clock is, or a correction), all times of the state go back with it, and it has a new birth: so nobody waits for longer
-- than a window because of it, and what was charged before can't be refunded to what is charged since.

local key, args = KEYS[1], ARGV[1]
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local verb, cost = unpack('<c1d', args)
local limits = (#args - 9) / 24
local foreign = 'WRONGTYPE not what a rate limiter of this window has written'

