-- Removes entries that were leased for a take, after the client has received them. Hides other entries, so that they
-- are due again in a while.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         in how many microseconds the hidden entries are due again
-- ARGV[3]         number of taken entries that follow, each as its key and the end of its lease
-- ARGV[4]         and the following: the taken entries, then the hidden ones
-- Returns for each taken entry 1 if it was removed now; 2 if it was missing, so that no other client can have taken it
-- since; 0 if its lease has expired or is void.

local taken, records, outcome = {}, {}, {}
local others = 4 + 2 * ARGV[3]
-- An expired lease is refused even if no other client has the entry, because the client may have given up by then.
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
