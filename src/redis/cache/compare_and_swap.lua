-- ARGV[2]: the key. ARGV[3]: the value that must be there. ARGV[4]: the one that takes its place, with its TTL.
-- Answers whether it did, and else the value that is there, if one is.

local value, deadline = look(record, ARGV[2])
if not value or is_dead(deadline) then return { 0, false } end
if value ~= ARGV[3] then return { 0, value } end
redis.call('SET', record, ARGV[4], 'KEEPTTL')
return { 1, false }
