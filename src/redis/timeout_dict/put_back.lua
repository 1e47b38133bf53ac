-- Puts back what was taken in vain, unless there is an entry again.
--
-- KEYS[1], ARGV[1]   as in prelude.lua
-- ARGV[2]            the key
-- ARGV[3]            the score that it had; empty where it is to be due later instead,
-- ARGV[4]            in so many microseconds
-- ARGV[5]            and what follows: its value, as `write` of the layout takes it
-- Returns whether it did, as 1 or 0.

local key, name = ARGV[2], record_prefix .. ARGV[2]
if has(name) then
  return 0
end
redis.call('ZADD', index, ARGV[3] ~= '' and again(ARGV[3]) or deadline_in(ARGV[4]), key)
write(name, 5)
return 1
