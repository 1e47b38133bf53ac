-- Window::Gcra, the generic cell rate algorithm (ITU-T I.371): for each limit the time at which everything has leaked,
-- the total amount refunded so far, and the step of the last check. A step is the time in which one unit leaks. If a
-- check has another step (another plan, or changed limits), what is in use remains the same number of units.
--
-- KEYS and ARGV are documented in prelude.lua, and so is the reply except for its numbers per limit. The position of a
-- charge is the sum of both times, including the charge; amounts are times too. A check returns 0 and the creation
-- time, or the limit with the longest wait and that wait; `now`; the clock; and for each limit both times and the step,
-- from which the remaining units are computed.
--
-- State: '\3G'; its creation time, the time of the last charge, its time of expiry, and for each limit both times and
-- the step, which is zero if it is not known. The former '\2G', without steps, is read too.

local state = call('GET', key)

-- Fast path for most calls: a check of a single limit that admits it, without a later expiry of the key. It is
-- equivalent to the general path below, with half of the work. It returns the new state, which has all numbers of the
-- reply, instead of formatting these once more.
if verb == 'c' and #args == 33 and state and #state == 50 then
  local kind, created, last, expires_at, at, back, known = unpack('<Hdddddd', state)
  at = (at > clock and at or clock) + step * cost
  if kind == 0x4703 and known == step and last <= clock and at - step * quota <= clock and at <= expires_at then
    state = pack('<Hdddddd', kind, created, clock, expires_at, at, back, step)
    call('SET', key, state, 'KEEPTTL')
    return state
  end
end

local kind, created, last, expires_at, stored = 0x4703, clock, 0, 0, 0
if state then
  if #state < 26 then return redis.error_reply(foreign) end
  kind, created, last, expires_at = unpack('<Hddd', state)
  if kind == 0x4703 then
    stored = (#state - 26) / 24
  elseif kind == 0x4702 and verb ~= 'r' then
    kind, stored = 0x4703, (#state - 26) / 16
    local times = {}
    for i = 1, stored do times[i] = sub(state, 11 + 16 * i, 26 + 16 * i) .. pack('<d', 0) end
    state = pack('<Hddd', kind, created, last, expires_at) .. table.concat(times)
  else
    -- No process has a permit for a charge in '\2G' that it could refund here.
    if kind ~= 0x4c01 and kind ~= 0x4201 and kind ~= 0x4702 then return redis.error_reply(foreign) end
    state, kind, created, last, expires_at = nil, 0x4703, clock, 0, 0
  end
end
if last > clock then
  local ahead, times = last - clock, {}
  for i = 1, stored do
    local at, back, step = unpack('<ddd', state, 3 + 24 * i)
    times[i] = pack('<ddd', math.max(0, at - ahead), back, step)
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
    local at, back, step = unpack('<ddd', state, 3 + 24 * i)
    local position, amount = 0, 0
    if 16 * i < #args then position, amount = unpack('<dd', args, 16 * i - 6) end
    local left = math.max(0, math.min(position - back - now, amount))
    parts[i + 1] = pack('<ddd', math.max(0, at - left), back + left, step)
  end
  call('SET', key, table.concat(parts), 'KEEPTTL')
  return 1
end

-- Times as if the cost were charged; those in use now, by the steps of this check; and until when these are.
local which, ready, expiry, times = 0, now, expires_at, ''
local converts, present, until_idle = false, '', expires_at
for i = 1, limits do
  local quota, _, step = unpack('<ddd', args, 24 * i - 14)
  local at, back, known = 0, 0, step
  if i <= stored then at, back, known = unpack('<ddd', state, 3 + 24 * i) end
  if known == 0 then known = step end
  if known ~= step then
    local left = at - now
    if left > 0 then
      -- Rounded up, so that no usage is lost. Earlier charges then count as leaked: their amounts are in other steps.
      at, back = now + math.ceil(left / known * step), back + left
    end
    converts = true
  end
  present = present .. pack('<ddd', at, back, step)
  if at > until_idle then until_idle = at end
  at = (at > now and at or now) + step * cost
  -- Time at which enough has leaked for the cost.
  local from = at - step * quota
  if from > ready and verb ~= 'd' then which, ready = i, from end
  if at > expiry then expiry = at end
  times = times .. pack('<ddd', at, back, step)
end

local denies = which > 0 or verb == 'p'
local reply = pack('<dddd', which, which == 0 and created or ready - clock, now, clock)
if denies then
  reply = reply .. present
  -- A denial keeps the conversion: otherwise what is in use would leak by the old step, and not by that of the wait.
  if verb == 'p' or not converts or not state then return reply end
  times, expiry, now = present, until_idle, last
else
  reply = reply .. times
end
-- The charges of further limits are kept.
if stored > limits then times = times .. sub(state, 27 + 24 * limits) end
if expiry > expires_at then
  -- An eighth later than necessary, so that the expiry is seldom set again.
  expires_at = expiry + math.max(0, expiry - clock) / 8
  local head = pack('<Hddd', kind, created, now, expires_at)
  -- A debt may take longer to leak than the server can count.
  call('SET', key, head .. times, 'PXAT', string.format('%d', math.min(expires_at / 1000 + 1, 2 ^ 53)))
else
  call('SET', key, pack('<Hddd', kind, created, now, expires_at) .. times, 'KEEPTTL')
end
return reply
