-- Takes out entries that were lent to a take, as whoever took them has them. Others of them it hides: they are due
-- again in a while.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         in how many microseconds the others are due again
-- ARGV[3]         how many entries follow that are taken, each its key and the number of its lease
-- ARGV[4]         and what follows: these, and then the others
-- Returns for each that is taken 1 where it is out now, 2 where it was out before, and nobody else can have been given
-- it; 0 where the lease is over or void.

local taken, records, outcome = {}, {}, {}
local others = 4 + 2 * ARGV[3]
-- A lease that is over is none, though nobody else may have the entry yet: who asked may have given up.
for at = 4, others - 1, 2 do
  local key, number = ARGV[at], tonumber(ARGV[at + 1])
  if now >= number then
    outcome[#outcome + 1] = 0
  elseif set_of_lease(key, number) and exists(record_prefix .. key) then
    taken[#taken + 1], records[#records + 1] = key, record_prefix .. key
    outcome[#outcome + 1] = 1
  else
    outcome[#outcome + 1] = redis.call('EXISTS', record_prefix .. key) == 1 and 0 or 2
  end
end
if #taken > 0 then
  redis.call('ZREM', index, unpack(taken))
  clear_failures(taken)
  redis.call('UNLINK', unpack(records))
end
for at = others, #ARGV, 2 do
  local set = set_of_lease(ARGV[at], tonumber(ARGV[at + 1]))
  if set then
    redis.call('ZADD', set, deadline_in(ARGV[2]), ARGV[at])
  end
end
return outcome
