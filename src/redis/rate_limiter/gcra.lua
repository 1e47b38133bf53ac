-- Window::Gcra, the generic cell rate algorithm (ITU-T I.371): for each limit the time at which all of it has
-- leaked, and how much was taken back so far. A step is how long a unit takes.
--
-- KEYS and ARGV are those of prelude.lua; so is what is returned, but for what is told of each limit. A mark is the sum
-- of both, the charge included; an amount is a time too. A check returns 0 and the birth, or which limit it has to wait
-- for and how long; `now`; the clock; and both for each limit, which tell what is left.
--
-- The state: '\2G', then its birth, the time of the last charge, when the key may leave, and both for each limit.

local state = call('GET', key)

-- What most calls are: a check of the one limit that there is, which has room and need not stay for longer. It comes to the
-- same as what follows, with half of the work.
if verb == 'c' and #args == 33 and state and #state == 42 then
  local kind, born, last, dies, at, back = unpack('<Hddddd', state)
  local quota, _, step = unpack('<ddd', args, 10)
  at = (at > clock and at or clock) + step * cost
  if kind == 0x4702 and last <= clock and at - step * quota <= clock and at <= dies then
    call('SET', key, pack('<Hddddd', kind, born, clock, dies, at, back), 'KEEPTTL')
    return pack('<dddddd', 0, born, clock, clock, at, back)
  end
end

local kind, born, last, dies, stored = 0x4702, clock, 0, 0, 0
if state then
  if #state < 26 then return redis.error_reply(foreign) end
  kind, born, last, dies = unpack('<Hddd', state)
  if kind ~= 0x4702 then return redis.error_reply(foreign) end
  stored = (#state - 26) / 16
end
if last > clock then
  local ahead, times = last - clock, {}
  for i = 1, stored do
    local at, back = unpack('<dd', state, 11 + 16 * i)
    times[i] = pack('<dd', math.max(0, at - ahead), back)
  end
  born, last, dies = clock, clock, dies - ahead
  state = pack('<Hddd', kind, born, last, dies) .. table.concat(times)
  call('SET', key, state, 'KEEPTTL')
end
local now = clock

if verb == 'r' then
  if not state or cost ~= born then return 0 end
  local parts = {sub(state, 1, 26)}
  for i = 1, stored do
    -- Charges leak in the order in which they came, this one until its mark. What was taken back since leaks no more:
    -- so it never seems to have leaked less than it has.
    local at, back = unpack('<dd', state, 11 + 16 * i)
    local mark, amount = 0, 0
    if 16 * i < #args then mark, amount = unpack('<dd', args, 16 * i - 6) end
    local left = math.max(0, math.min(mark - back - now, amount))
    parts[i + 1] = pack('<dd', math.max(0, at - left), back + left)
  end
  call('SET', key, table.concat(parts), 'KEEPTTL')
  return 1
end

-- As if they were charged.
local which, ready, leaves, times = 0, now, dies, ''
for i = 1, limits do
  local quota, _, step = unpack('<ddd', args, 24 * i - 14)
  local at, back = 0, 0
  if i <= stored then at, back = unpack('<dd', state, 11 + 16 * i) end
  at = (at > now and at or now) + step * cost
  -- When what is in use has leaked so far that the bucket holds the cost.
  local from = at - step * quota
  if from > ready and verb ~= 'd' then which, ready = i, from end
  if at > leaves then leaves = at end
  times = times .. pack('<dd', at, back)
end

if which > 0 or verb == 'p' then
  times = stored > 0 and sub(state, 27) or ''
  return pack('<dddd', which, which == 0 and born or ready - clock, now, clock) .. times
end
-- What limits beyond these have in use stays.
if stored > limits then times = times .. sub(state, 27 + 16 * limits) end
if leaves > dies then
  -- An eighth later than it has to be, so that it is seldom said anew.
  dies = leaves + (leaves - now) / 8
  local head = pack('<Hddd', kind, born, now, dies)
  call('SET', key, head .. times, 'PXAT', string.format('%d', dies / 1000 + 1))
else
  call('SET', key, pack('<Hddd', kind, born, now, dies) .. times, 'KEEPTTL')
end
return pack('<dddd', 0, born, now, clock) .. times
