-- Window::Buckets: buckets of one step each, per / step of them in a window. The calls in a bucket count until all of
-- it is as old as the window: the oldest bucket counts in full. Only buckets with calls are stored.
--
-- KEYS, ARGV and the reply are documented in prelude.lua. The position of a charge is the last microsecond of its
-- bucket.
--
-- State: '\1B'; its creation time, the time of the last charge, its time of expiry; then for each limit the units in
-- use (four bytes) and the number of buckets (two), and for each bucket its last microsecond and its units (four).

local state = call('GET', key) or ''
local kind, created, last, expires_at, size = 0x4201, clock, 0, 0, #state
if size > 0 then
  if size < 26 then return redis.error_reply(foreign) end
  kind, created, last, expires_at = unpack('<Hddd', state)
  if kind ~= 0x4201 then
    if kind ~= 0x4c01 and kind ~= 0x4702 and kind ~= 0x4703 then return redis.error_reply(foreign) end
    state, kind, created, last, expires_at, size = '', 0x4201, clock, 0, 0, 0
  end
end
if last > clock then
  local ahead, at, pieces = last - clock, 27, {}
  created, last, expires_at = clock, clock, expires_at - ahead
  while at <= size do
    local used, count, from = unpack('<I4I2', state, at)
    pieces[#pieces + 1] = pack('<I4I2', used, count)
    at = from + 12 * count
    for bucket = from, at - 12, 12 do
      pieces[#pieces + 1] = pack('<d', unpack('<d', state, bucket) - ahead) .. sub(state, bucket + 8, bucket + 11)
    end
  end
  state = pack('<Hddd', kind, created, last, expires_at) .. table.concat(pieces)
  call('SET', key, state, 'KEEPTTL')
end
local now = clock

-- Fast path for most calls: a check of a single limit that admits it, into an existing bucket, while no bucket leaves
-- the window. It is equivalent to the general path below, with half of the work.
if verb == 'c' and #args == 33 and size >= 44 then
  local used, count, oldest = unpack('<I4I2d', state, 27)
  if size == 32 + 12 * count and used + cost <= quota then
    local newest, units = unpack('<dI4', state, size - 11)
    if oldest + per > now and newest >= now and newest < last + step then
      used = used + cost
      call('SET', key, pack('<HdddI4I2', kind, created, now, expires_at, used, count) .. sub(state, 33, size - 12)
        .. pack('<dI4', newest, units + cost), 'KEEPTTL')
      return pack('<ddddd', 0, created, newest, quota - used, oldest + per - now)
    end
  end
end

-- Offset of the next limit.
local after = 27

if verb == 'r' then
  if size == 0 or cost ~= created then return 0 end
  local pieces = {sub(state, 1, 26)}
  for i = 1, (#args - 9) / 16 do
    local position, amount = unpack('<dd', args, 16 * i - 6)
    if after > size then break end
    local used, count, from = unpack('<I4I2', state, after)
    local upto = from + 12 * count
    after = upto
    local list = sub(state, from, upto - 1)
    for at = upto - 12, from, -12 do
      local bucket, units = unpack('<dI4', state, at)
      if bucket == position then
        local back = math.min(units, amount)
        used = used - back
        local left = back < units and pack('<dI4', bucket, units - back) or ''
        count = count - (left == '' and 1 or 0)
        list = sub(state, from, at - 1) .. left .. sub(state, at + 12, upto - 1)
        break
      end
    end
    pieces[i + 1] = pack('<I4I2', used, count) .. list
  end
  call('SET', key, table.concat(pieces) .. sub(state, after), 'KEEPTTL')
  return 1
end

-- For each limit: the units in use, the number of buckets, the offsets of the first and past the last, and the time of
-- the oldest.
local found = {}
local which, ready = 0, 0
for i = 1, limits do
  local quota, per, step = unpack('<ddd', args, 24 * i - 14)
  local used, count, from, oldest = 0, 0, after, now
  if after <= size then used, count, from = unpack('<I4I2', state, after) end
  after = from + 12 * count
  if count > 0 and unpack('<d', state, after - 12) >= last + step then
    -- Written under limits with a longer step. The calls in the newest bucket came no later than the last charge.
    state = sub(state, 1, after - 13) .. pack('<d', last) .. sub(state, after - 4)
  end
  while count > 0 do
    local bucket, units = unpack('<dI4', state, from)
    if bucket + per > now then
      oldest = bucket
      break
    end
    used, count, from = used - units, count - 1, from + 12
  end
  local excess, at = verb == 'd' and 0 or used + cost - quota, from
  while excess > 0 do
    local bucket, units = unpack('<dI4', state, at)
    excess, at = excess - units, at + 12
    if excess <= 0 and bucket + per > ready then which, ready = i, bucket + per end
  end
  found[i] = {used, count, from, after, oldest}
end

local charged = which == 0 and verb ~= 'p'
local reply, all, position = pack('<dd', which, which == 0 and created or ready - clock), '', 0
local expiry = expires_at
for i = 1, limits do
  local quota, per, step = unpack('<ddd', args, 24 * i - 14)
  local limit = found[i]
  local used, count, from, upto = limit[1], limit[2], limit[3], limit[4]
  if charged then
    -- The maximum of four bytes, which is above every quota.
    local units = math.min(cost, 4294967295 - used)
    used = used + units
    -- The first bucket ends with its first call, which then leaves after exactly one window. Later buckets follow in
    -- whole steps.
    position = now
    if count > 0 then
      local newest, in_it = unpack('<dI4', state, upto - 12)
      if newest >= now then
        position, units, upto, count = newest, units + in_it, upto - 12, count - 1
      else
        position = newest + math.ceil((now - newest) / step) * step
      end
    end
    count = count + 1
    local list = sub(state, from, upto - 1)
    all = all .. pack('<I4I2', used, count) .. list .. pack('<dI4', position, units)
    if position + per > expiry then expiry = position + per end
  end
  local more = -1
  if used > quota and verb ~= 'd' then
    -- More is in use than the quota, which was larger before or for other calls.
    local excess, at = used + 1 - quota, from
    repeat
      local bucket, units = unpack('<dI4', state, at)
      more, excess, at = bucket + per - clock, excess - units, at + 12
    until excess <= 0
  elseif used > 0 then
    more = limit[5] + per - clock
  end
  reply = reply .. pack('<ddd', position, used < quota and quota - used or 0, more)
end

if charged then
  -- The charges of further limits are kept.
  if after <= size then all = all .. sub(state, after) end
  all = pack('<Hddd', kind, created, now, expiry) .. all
  if expiry > expires_at then
    call('SET', key, all, 'PXAT', string.format('%d', expiry / 1000 + 1))
  else
    call('SET', key, all, 'KEEPTTL')
  end
end
return reply
