-- Window::Log: the times of the calls that passed. A call counts for `per` from its time on, so the window is
-- (now - per, now]. All limits count the same calls, each from its own head on. The step is not used.
--
-- KEYS, ARGV and the reply are documented in prelude.lua. The position of a charge is the number of the call since the
-- creation of the state.
--
-- State: '\1L'; its creation time, the time of the last charge, its time of expiry, the number of calls cut off at the
-- front, and the number of all calls; the number of limits (two bytes). Then for each limit its per, its head, the time
-- of that call, and the units in use (four); then for each call its time and its units (four). A call that has left the
-- window is skipped by the head, and cut off once there are as many of these as of the others.
--
-- A head is never a refunded call. If nothing is in use, it is past the last call.
--
-- While processes with other limits use the subject too (during a rollout, or with limits per call), the numbers of those
-- limits are kept: without them, each check would count all calls again. They are dropped when no check has used them for
-- one to two of their windows, which is apparent from the age of their head.

-- Index of the last byte of a state that is read and written as a whole. A longer state is appended to.
local SMALL = '511'
-- Number of calls read at a time.
local MANY = 64
-- Maximum number of limits of other checks whose numbers are kept.
local MAX_OTHERS = 8

local state = call('GETRANGE', key, '0', SMALL)
local length = #state
local kind, created, last, expires_at, dropped, tail, counted = 0x4c01, clock, 0, 0, 0, 0, 0
if length > 0 then
  if length < 26 then return redis.error_reply(foreign) end
  kind = unpack('<H', state)
  if kind == 0x4c01 then
    if length < 44 then return redis.error_reply(foreign) end
    kind, created, last, expires_at, dropped, tail, counted = unpack('<HdddddH', state)
  end
  if kind ~= 0x4c01 then
    if kind ~= 0x4201 and kind ~= 0x4702 and kind ~= 0x4703 then return redis.error_reply(foreign) end
    state, length, kind, created, last, expires_at, dropped, tail, counted = '', 0, 0x4c01, clock, 0, 0, 0, 0, 0
  end
end
local size = 44 + 28 * counted
if length > 0 and length < size then
  state = call('GETRANGE', key, 0, size - 1)
  length = size
end
if last > clock then
  local ahead, parts = last - clock, {}
  state = call('GET', key)
  for i = 1, counted do
    local per, head, since, used = unpack('<dddI4', state, 17 + 28 * i)
    parts[i] = pack('<dddI4', per, head, since - ahead, used)
  end
  for at = size + 1, #state, 12 do
    parts[#parts + 1] = pack('<d', unpack('<d', state, at) - ahead) .. sub(state, at + 8, at + 11)
  end
  created, last, expires_at = clock, clock, expires_at - ahead
  state = pack('<HdddddH', kind, created, last, expires_at, dropped, tail, counted) .. table.concat(parts)
  length = #state
  call('SET', key, state, 'KEEPTTL')
end
local now = clock
local is_whole = length == 0 or length == size + 12 * (tail - dropped)

-- Fast path for most calls: a check of a single limit that admits it, while no call leaves the window and the state is
-- long. It is equivalent to the general path below, with half of the work.
if verb == 'c' and #args == 33 and counted == 1 and not is_whole then
  local known, head, since, used = unpack('<dddI4', state, 45)
  local gone = head - dropped
  if known == per and head < tail and since > now - per and used + cost <= quota
    and now + per <= expires_at and (gone < MANY or gone < tail - head) then
    used = used + cost
    call('APPEND', key, pack('<dI4', now, cost))
    call('SETRANGE', key, '0',
      pack('<HdddddHdddI4', kind, created, now, expires_at, dropped, tail + 1, 1, per, head, since, used))
    return pack('<ddddd', 0, created, tail, quota - used, since + per - now)
  end
end

-- For each limit: its head, the time of that call, the units in use, and whether these are known.
local found = {}
local longest, is_settled, are_known = 0, verb ~= 'r', true
for i = 1, is_settled and limits or 0 do
  local quota, per = unpack('<dd', args, 24 * i - 14)
  local known, head, since, used = 0, 0, 0, 0
  -- The numbers of the same limit are usually at the same place.
  for offset = 0, counted - 1 do
    known, head, since, used = unpack('<dddI4', state, 45 + 28 * ((i - 1 + offset) % counted))
    if known == per then break end
  end
  local is_known = known == per
  are_known = are_known and is_known
  found[i] = {head, since, used, is_known}
  if per > longest then longest = per end
  -- Settled if the stored numbers are of this window, no call has left it, and the cost fits.
  is_settled = is_settled and is_known and (head == tail or since > now - per)
    and used + cost <= quota
end

local entry, seek
if not is_settled then
  local buffer, first, place = state, dropped, size
  -- Returns the time and the units of a call.
  entry = function(index)
    local at = place + 12 * (index - first) + 1
    if index < first or at + 11 > #buffer then
      place, first = 0, index
      local start = size + 12 * (index - dropped)
      buffer = call('GETRANGE', key, start, start + 12 * MANY - 1)
      at = 1
    end
    return unpack('<dI4', buffer, at)
  end

  -- Returns the first call from `head` on that was not refunded, and its time.
  seek = function(head)
    while head < tail do
      local at, units = entry(head)
      if units > 0 then return head, at end
      head = head + 1
    end
    return tail, 0
  end
end

if verb == 'r' then
  local index, amount = unpack('<dd', args, 10)
  -- At the tail or above: the server has lost the charge in a crash.
  if length == 0 or cost ~= created or index < dropped or index >= tail then return 0 end
  local at, units = entry(index)
  local back = math.min(units, amount)
  local slots = {sub(state, 1, 44)}
  for i = 1, counted do
    local per, head, since, used = unpack('<dddI4', state, 17 + 28 * i)
    if head <= index then
      used = used - back
      if head == index and back == units then head, since = seek(head + 1) end
    end
    slots[i + 1] = pack('<dddI4', per, head, since, used)
  end
  call('SETRANGE', key, size + 12 * (index - dropped), pack('<dI4', at, units - back))
  call('SETRANGE', key, '0', table.concat(slots))
  return 1
end

local which, ready = 0, 0
for i = 1, is_settled and 0 or limits do
  local quota, per = unpack('<dd', args, 24 * i - 14)
  local limit = found[i]
  local head, since, used = limit[1], limit[2], limit[3]
  if not limit[4] then
    -- Other limits: count all calls again.
    head, since = seek(dropped)
    used = 0
    for index = head, tail - 1 do
      local _, units = entry(index)
      used = used + units
    end
  end
  while head < tail and since <= now - per do
    local _, units = entry(head)
    used = used - units
    head, since = seek(head + 1)
  end
  local excess, index = verb == 'd' and 0 or used + cost - quota, head
  while excess > 0 do
    local at, units = entry(index)
    excess, index = excess - units, index + 1
    if excess <= 0 and at + per > ready then which, ready = i, at + per end
  end
  found[i] = {head, since, used, limit[4]}
end

local charged = which == 0 and verb ~= 'p'
if verb == 'd' then
  -- The maximum of four bytes, which is above every quota.
  for i = 1, limits do cost = math.min(cost, 4294967295 - found[i][3]) end
end
-- Numbers are also written if they were counted, so that the next check need not count again, even if it is denied.
local writes = charged or not are_known and not is_whole
local reply, slots, start = pack('<dd', which, which == 0 and created or ready - clock), '', tail
for i = 1, limits do
  local quota, per = unpack('<dd', args, 24 * i - 14)
  local limit = found[i]
  local head, since, used = limit[1], limit[2], limit[3]
  if writes then
    if charged then
      if head == tail then since = now end
      used = used + cost
    end
    slots = slots .. pack('<dddI4', per, head, since, used)
    if head < start then start = head end
  end
  local more = -1
  if used > quota and verb ~= 'd' then
    -- More is in use than the quota, which was larger before or for other calls.
    local excess, index = used + 1 - quota, head
    repeat
      local at, units = entry(index)
      more, excess, index = at + per - clock, excess - units, index + 1
    until excess <= 0
  elseif used > 0 then
    more = since + per - clock
  end
  reply = reply .. pack('<ddd', tail, used < quota and quota - used or 0, more)
end

-- The numbers of other limits.
local others = 0
for j = 1, writes and (counted > limits or not are_known) and counted or 0 do
  local per, head, since, used = unpack('<dddI4', state, 17 + 28 * j)
  local is_other = since > now - 2 * per and used + cost <= 4294967295 and others < MAX_OTHERS
  for i = 1, is_other and limits or 0 do
    if unpack('<d', args, 24 * i - 6) == per then is_other = false end
  end
  if is_other then
    if charged then
      if head == tail then since = now end
      used = used + cost
    end
    slots = slots .. pack('<dddI4', per, head, since, used)
    if head < start then start = head end
    others = others + 1
  end
end

if charged then
  local gone, stay = start - dropped, tail - start
  local extends = now + longest > expires_at
  -- An eighth of the window later than necessary, so that the expiry is seldom set again.
  if extends then expires_at = now + longest * 1.125 end
  local rewrites = is_whole or limits + others ~= counted or (gone >= MANY and gone >= stay)
  if rewrites then dropped = start end
  local head = pack('<HdddddH', kind, created, now, expires_at, dropped, tail + 1, limits + others) .. slots
  local new = pack('<dI4', now, cost)
  if rewrites then
    local rest = ''
    if is_whole then
      rest = sub(state, size + 12 * gone + 1)
    elseif stay > 0 then
      rest = call('GETRANGE', key, size + 12 * gone, -1)
    end
    if extends then
      call('SET', key, head .. rest .. new, 'PXAT', string.format('%d', expires_at / 1000 + 1))
    else
      call('SET', key, head .. rest .. new, 'KEEPTTL')
    end
  else
    call('APPEND', key, new)
    call('SETRANGE', key, '0', head)
    if extends then call('PEXPIREAT', key, string.format('%d', expires_at / 1000 + 1)) end
  end
elseif writes then
  local head = pack('<HdddddH', kind, created, last, expires_at, dropped, tail, limits + others)
  call('SET', key, head .. slots .. call('GETRANGE', key, size, -1), 'KEEPTTL')
end
return reply
