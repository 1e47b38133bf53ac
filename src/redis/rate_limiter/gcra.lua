-- Window::Gcra, the generic cell rate algorithm (ITU-T I.371): for each limit the time at which everything has leaked,
-- and the total amount refunded so far. A step is the time in which one unit leaks.
--
-- KEYS and ARGV are documented in prelude.lua, and so is the reply except for its numbers per limit. The position of a
-- charge is the sum of both times, including the charge; amounts are times too. A check returns 0 and the creation
-- time, or the limit with the longest wait and that wait; `now`; the clock; and for each limit both times, from which
-- the remaining units are computed.
--
-- State: '\2G'; its creation time, the time of the last charge, its time of expiry, and for each limit both times.

local state = call('GET', key)

-- Fast path for most calls: a check of a single limit that admits it, without a later expiry of the key. It is
-- equivalent to the general path below, with half of the work.
if verb == 'c' and #args == 33 and state and #state == 42 then
  local kind, created, last, expires_at, at, back = unpack('<Hddddd', state)
  local quota, _, step = unpack('<ddd', args, 10)
  at = (at > clock and at or clock) + step * cost
  if kind == 0x4702 and last <= clock and at - step * quota <= clock and at <= expires_at then
    call('SET', key, pack('<Hddddd', kind, created, clock, expires_at, at, back), 'KEEPTTL')
    return pack('<dddddd', 0, created, clock, clock, at, back)
  end
end

local kind, created, last, expires_at, stored = 0x4702, clock, 0, 0, 0
if state then
  if #state < 26 then return redis.error_reply(foreign) end
  kind, created, last, expires_at = unpack('<Hddd', state)
  if kind == 0x4702 then
    stored = (#state - 26) / 16
  else
    if kind ~= 0x4c01 and kind ~= 0x4201 then return redis.error_reply(foreign) end
    state, kind, created, last, expires_at = nil, 0x4702, clock, 0, 0
  end
end
if last > clock then
  local ahead, times = last - clock, {}
  for i = 1, stored do
    local at, back = unpack('<dd', state, 11 + 16 * i)
    times[i] = pack('<dd', math.max(0, at - ahead), back)
  end
  created, last, expires_at = clock, clock, expires_at - ahead
  state = pack('<Hddd', kind, created, last, expires_at) .. table.concat(times)
  call('SET', key, state, 'KEEPTTL')
end
local now = clock

if verb == 'r' then
  if not state or cost ~= created then return 0 end
  local parts = {sub(state, 1, 26)}
  for i = 1, stored do
    -- Charges leak in order, this one until its position. Amounts refunded since do not leak any more, so they are
    -- subtracted: a refund never returns more than what has not leaked yet.
    local at, back = unpack('<dd', state, 11 + 16 * i)
    local position, amount = 0, 0
    if 16 * i < #args then position, amount = unpack('<dd', args, 16 * i - 6) end
    local left = math.max(0, math.min(position - back - now, amount))
    parts[i + 1] = pack('<dd', math.max(0, at - left), back + left)
  end
  call('SET', key, table.concat(parts), 'KEEPTTL')
  return 1
end

-- Times as if the cost were charged.
local which, ready, expiry, times = 0, now, expires_at, ''
for i = 1, limits do
  local quota, _, step = unpack('<ddd', args, 24 * i - 14)
  local at, back = 0, 0
  if i <= stored then at, back = unpack('<dd', state, 11 + 16 * i) end
  at = (at > now and at or now) + step * cost
  -- Time at which enough has leaked for the cost.
  local from = at - step * quota
  if from > ready and verb ~= 'd' then which, ready = i, from end
  if at > expiry then expiry = at end
  times = times .. pack('<dd', at, back)
end

if which > 0 or verb == 'p' then
  times = stored > 0 and sub(state, 27) or ''
  return pack('<dddd', which, which == 0 and created or ready - clock, now, clock) .. times
end
-- The charges of further limits are kept.
if stored > limits then times = times .. sub(state, 27 + 16 * limits) end
if expiry > expires_at then
  -- An eighth later than necessary, so that the expiry is seldom set again.
  expires_at = expiry + (expiry - now) / 8
  local head = pack('<Hddd', kind, created, now, expires_at)
  call('SET', key, head .. times, 'PXAT', string.format('%d', expires_at / 1000 + 1))
else
  call('SET', key, pack('<Hddd', kind, created, now, expires_at) .. times, 'KEEPTTL')
end
return pack('<dddd', 0, created, now, clock) .. times
