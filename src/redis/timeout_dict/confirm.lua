-- Removes entries that were leased for a take, after the client has received them. Hides other entries, so that they
-- are due again in a while.
--
-- KEYS, ARGV[1]   as in prelude.lua
-- ARGV[2]         in how many microseconds the hidden entries are due again
-- ARGV[3]         number of taken entries that follow, each as its key and the end of its lease
-- ARGV[4]         and the following: the taken entries, then the hidden ones
-- Returns for each taken entry 1 if it was removed now; 2 if it was missing, so that no other client can have taken it
-- since; 0 if its lease has expired or is void.

local count = tonumber(ARGV[3])
local others = 4 + 2 * count
local leases = {}
-- Usually, all of them still have their leases, which follow each other: read with one command, since a command per
-- entry takes several times as long. The others are checked one by one.
local found = count == 0 and {} or redis.call('ZRANGEBYSCORE', index, score(tonumber(ARGV[5])),
  score(tonumber(ARGV[3 + 2 * count])), 'WITHSCORES', 'LIMIT', 0, 2 * count)
for i = 1, #found, 2 do
  leases[found[i]] = found[i + 1]
end
local taken, records, outcome = {}, {}, {}
for i = 1, count do
  local key, lease_end = ARGV[2 + 2 * i], ARGV[3 + 2 * i]
  local record, number = record_prefix .. key, tonumber(lease_end)
  if now >= number then
    -- Refused even if no other client has the entry, because the client may have given up by then.
    outcome[i] = 0
  elseif (leases[key] == lease_end or set_of_lease(key, number)) and exists(record) then
    taken[#taken + 1], records[#records + 1] = key, record
    outcome[i] = 1
  else
    outcome[i] = redis.call('EXISTS', record) == 1 and 0 or 2
  end
end
if #taken > 0 then
  redis.call('ZREM', index, unpack(taken))
  clear_failures(taken)
  redis.call('UNLINK', unpack(records))
end
if others <= #ARGV then
  allow_full_server()
end
for at = others, #ARGV, 2 do
  local set = set_of_lease(ARGV[at], tonumber(ARGV[at + 1]))
  if set then
    redis.call('ZADD', set, deadline_in(ARGV[2]), ARGV[at])
  end
end
return outcome
