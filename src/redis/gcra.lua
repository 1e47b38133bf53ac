-- The generic cell rate algorithm (ITU-T I.371): for each limit the time at which all of it has leaked. A step is
-- how long a unit takes.
--
-- The state: '\1G', then in eight bytes each its birth, the time of the last charge, when the key may leave, and
-- that time for each limit.

local state = call('GET', key)
local kind, born, last, dies, stored = 0x4701, clock, 0, 0, 0
if state then
  if #state < 26 then return redis.error_reply(foreign) end
  kind, born, last, dies = unpack('<I2I8I8I8', state)
  if kind ~= 0x4701 then return redis.error_reply(foreign) end
  stored = (#state - 26) / 8
end
local now = clock > last and clock or last

if verb == 'refund' then
  if not state or ARGV[2] ~= string.format('%.0f', born) then return 0 end
  local parts = {sub(state, 1, 26)}
  for i = 1, stored do
    -- Charges leak in the order in which they came, this one until its mark.
    local mark, amount = tonumber(ARGV[2 * i + 1] or 0), tonumber(ARGV[2 * i + 2] or 0)
    local left = math.max(0, math.min(mark - now, amount))
    parts[i + 1] = pack('<I8', math.max(0, unpack('<I8', state, 19 + 8 * i) - left))
  end
  call('SET', key, table.concat(parts), 'KEEPTTL')
  return 1
end

local arrivals, which, ready = {}, 0, now
for i = 1, limits do
  local at = i <= stored and unpack('<I8', state, 19 + 8 * i) or 0
  -- When what is in use has leaked so far that the bucket holds the cost.
  local from = at - ARGV[3 * i + 2] * (ARGV[3 * i] - cost)
  if from > ready then which, ready = i, from end
  arrivals[i] = at
end

local charged = which == 0 and verb == 'check'
local reply, times = pack('<I8I8', which, which == 0 and born or ready - clock), ''
for i = 1, limits do
  local quota, step, at = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 2]), arrivals[i]
  if charged then
    at = (at > now and at or now) + step * cost
    times = times .. pack('<I8', at)
    if at > dies then dies = at end
  end
  local left, more = quota, -1
  if at > now then
    left = quota - math.ceil((at - now) / step)
    if left < 0 then left = 0 end
    more = at - step * (quota - left - 1) - clock
  end
  reply = reply .. pack('<I8I8i8', at, left, more)
end

if charged then
  -- What limits beyond these have in use stays.
  if stored > limits then times = times .. sub(state, 27 + 8 * limits) end
  local head = pack('<I2I8I8I8', kind, born, now, dies)
  call('SET', key, head .. times, 'PXAT', math.ceil(dies / 1000))
end
return reply
