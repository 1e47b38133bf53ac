-- As Redis' TTL, in microseconds.
local key = ARGV[2]
if not has(stem .. key) then
  return -2
end
local at = score_of(key)
if tonumber(at) == math.huge then
  return -1
end
return is_lent(at) and 0 or math.max(0, micros(at) - now)
