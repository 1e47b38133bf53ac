-- What all ways to count begin with; the file of one of them follows.
--
-- KEYS[1]  all that one subject has in use, of all its limits
-- ARGV     'check' or 'peek', the cost, then for each limit its quota, per and step; or
--          'refund', the birth of what was charged, then for each limit the mark and the amount of the charge
--
-- A check answers 0 and the birth of the state or, where it is denied, which limit it has to wait for and how
-- long; then for each limit the mark of its charge, what is left, and in how long more is (-1 where all is): each
-- in eight bytes of one string, which is read faster than a list. All limits are charged, or none, and a denial
-- writes nothing. A peek is a check that does not charge; a refund answers 1 or 0.
--
-- This runs with each check: it makes no more tables, strings and functions than it needs.
--
-- All times are the server's microseconds, of 51 bits: as numbers they are exact, and written in full. They never go back for one subject: `now` is at least the time of
-- its last charge. What is told is counted from the clock itself, since that has to get there.

local key, verb, cost = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local limits = (#ARGV - 2) / 3
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local foreign = 'WRONGTYPE not what a rate limiter of this window has written'

