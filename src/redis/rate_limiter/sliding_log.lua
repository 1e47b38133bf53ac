-- Window::Log: the times of the calls that passed. A call counts for `per` from its time on, so the window is
-- (now - per, now]. Each limit counts from its own head on. The step is not used.
--
-- KEYS, ARGV and the reply are documented in prelude.lua. The position of a charge is the number of the call since the
-- creation of the state.
--
-- A reservation is a call of the future, so times may decrease from one call to the next. A call leaves the window after
-- all calls before it. Its lead is the time by which it was ahead; for each limit, at most a tenth of its per counts.
--
-- State: '\1L'; its creation time, the time of the last charge, its time of expiry, the number of calls cut off at the
-- front, and the number of all calls; the number of limits (two bytes). Then for each limit its per, its head, the time
-- of that call, and the units in use (four); then for each call its time and its units (four). A call that has left the
-- window is skipped by the head, and cut off once there are as many of these as of the others. All calls have as many
-- limits as the state, so each of them counts for all.
--
-- A head is never a refunded call. If nothing is in use, it is past the last call.
--
-- While other limits use the subject too (limits per call, or processes with other limits during a rollout), the numbers
-- of these limits are kept: without them, each check would count all calls again, and the calls that only the longest of
-- them still counts would be cut off. They are dropped when no call is in their window. The state is then '\2L': each
-- limit has its quota and its position (two), too, and each call the number of its limits (two). A call counts for the
-- limits at these positions. The quota bounds the number of calls: a head skips those that make no difference because
-- later ones exceed the quota. Units of four bytes at their maximum are not exact, and counted again. '\3L' is a '\2L' with
-- the lead of each call, which a state becomes with its first reservation.

-- Index of the last byte of a state that is read and written as a whole. A longer state is appended to.
local SMALL = '511'
-- Number of calls read at a time.
local MANY = 64
-- Maximum number of limits of other checks whose numbers are kept.
local MAX_OTHERS = 8
-- Number of calls that a limit counts at least, even if later ones exceed its quota: as many can be refunded.
local MIN_KEPT = 4096
-- The maximum of four bytes, which is above every quota.
local MAX_UNITS = 4294967295

local state = call('GETRANGE', key, '0', SMALL)
local length = #state
local kind, created, last, expires_at, dropped, tail, counted = 0x4c01, clock, 0, 0, 0, 0, 0
if length > 0 then
  if length < 26 then return redis.error_reply(foreign) end
  kind = unpack('<H', state)
  if kind == 0x4c01 or kind == 0x4c02 or kind == 0x4c03 then
    if length < 44 then return redis.error_reply(foreign) end
    kind, created, last, expires_at, dropped, tail, counted = unpack('<HdddddH', state)
  else
    if kind ~= 0x4201 and kind ~= 0x4202 and kind ~= 0x4203 and kind ~= 0x4702 and kind ~= 0x4703
      and kind ~= 0x4704 and kind ~= 0x4705 then
      return redis.error_reply(foreign)
    end
    state, length, kind, created, last, expires_at, dropped, tail, counted = '', 0, 0x4c01, clock, 0, 0, 0, 0, 0
  end
end
-- Sizes of the numbers of a limit, of a call, and of all before the first call.
local is_wide = kind ~= 0x4c01
local slot_size, call_size = is_wide and 38 or 28, kind == 0x4c01 and 12 or kind == 0x4c02 and 14 or 22
local size = 44 + slot_size * counted
if length > 0 and length < size then
  state = call('GETRANGE', key, 0, size - 1)
  length = size
end
if last > clock then
  local behind, parts = last - clock, {}
  state = call('GET', key)
  for i = 1, counted do
    local at = 45 + slot_size * (i - 1)
    local since = unpack('<d', state, at + 16)
    parts[i] = sub(state, at, at + 15) .. pack('<d', since - behind) .. sub(state, at + 24, at + slot_size - 1)
  end
  for at = size + 1, #state, call_size do
    parts[#parts + 1] = pack('<d', unpack('<d', state, at) - behind) .. sub(state, at + 8, at + call_size - 1)
  end
  created, last, expires_at = clock, clock, expires_at - behind
  state = pack('<HdddddH', kind, created, last, expires_at, dropped, tail, counted) .. table.concat(parts)
  length = #state
  call('SET', key, state, 'KEEPTTL')
end
local now = clock
local is_whole = length == 0 or length == size + call_size * (tail - dropped)

-- Fast path for most calls: a check of a single limit that admits it, while no call leaves the window and the state is
-- long. It is equivalent to the general path below, with half of the work.
if verb == 'c' and #args == 33 and counted == 1 and not is_wide and not is_whole then
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

-- The same for a short state, and for a check of several limits, which are those of the state.
if verb == 'c' and counted == limits and not is_wide and length > 0 then
  local slots, reply, start = '', pack('<dd', 0, created), tail
  for i = 1, limits do
    local quota, per = unpack('<dd', args, 24 * i - 14)
    local known, head, since, used = unpack('<dddI4', state, 17 + 28 * i)
    used = used + cost
    if known ~= per or head == tail or since <= now - per or used > quota or now + per > expires_at then
      slots = nil
      break
    end
    slots = slots .. pack('<dddI4', per, head, since, used)
    reply = reply .. pack('<ddd', tail, quota - used, since + per - now)
    if head < start then start = head end
  end
  local gone = start - dropped
  if slots and (gone < MANY or gone < tail - start) then
    local head = pack('<HdddddH', kind, created, now, expires_at, dropped, tail + 1, limits) .. slots
    local new = pack('<dI4', now, cost)
    if is_whole then
      call('SET', key, head .. sub(state, size + 1) .. new, 'KEEPTTL')
    else
      call('APPEND', key, new)
      call('SETRANGE', key, '0', head)
    end
    return reply
  end
end

-- The numbers of a limit are a table: its per, its head, the time of that call, the units in use, its quota, its position,
-- and whether they are up to date. The quota of '\1L' is not known: no more than the units in use have to be kept.
local PER, HEAD, SINCE, USED, QUOTA, POSITION, IS_KNOWN = 1, 2, 3, 4, 5, 6, 7

local function limit_at(place)
  local per, head, since, used, quota, position =
    unpack(is_wide and '<dddI4dH' or '<dddI4', state, 45 + slot_size * (place - 1))
  if not is_wide then quota, position = used, place end
  return {per, head, since, used, quota, position}
end

-- For each limit of the check its numbers.
local found = {}
local longest, is_settled, are_known, are_in_place = 0, verb ~= 'r', true, true
for i = 1, is_settled and limits or 0 do
  local quota, per = unpack('<dd', args, 24 * i - 14)
  -- The numbers of the same limit are usually at the same place.
  local limit, place, is_known = nil, i, false
  for _ = 1, (is_wide or i <= counted) and counted or 0 do
    if place > counted then place = 1 end
    limit = limit_at(place)
    is_known = limit[PER] == per and (not is_wide or limit[POSITION] == i)
    if is_known then break end
    place = place + 1
  end
  if not is_known then limit = {per, 0, 0, 0, 0, i} end
  limit[POSITION] = i
  limit[QUOTA], limit[IS_KNOWN] = quota, is_known
  are_known = are_known and is_known
  -- In a '\1L', limits of one length may all be found at the place of one of them.
  are_in_place = are_in_place and is_known and place == i
  found[i] = limit
  if per > longest then longest = per end
  -- Settled if the stored numbers are of this window, no call has left it, and the cost fits.
  is_settled = is_settled and is_known and (limit[HEAD] == tail or limit[SINCE] > now - per)
    and limit[USED] + cost <= quota
end

local entry, seek
if not is_settled or counted > limits or not are_in_place then
  local buffer, first, place = state, dropped, size
  -- Returns the time of a call for a limit of this per, its units, and the number of its limits.
  entry = function(index, per)
    local at = place + call_size * (index - first) + 1
    if index < first or at + call_size - 1 > #buffer then
      place, first = 0, index
      local start = size + call_size * (index - dropped)
      buffer = call('GETRANGE', key, start, start + call_size * MANY - 1)
      at = 1
    end
    if kind == 0x4c01 then
      local time, units = unpack('<dI4', buffer, at)
      return time, units, counted
    end
    if kind == 0x4c02 then return unpack('<dI4H', buffer, at) end
    local time, units, positions, lead = unpack('<dI4Hd', buffer, at)
    return time - math.max(0, lead - math.ceil(per / LEAD_SHARE)), units, positions
  end

  -- Moves a head to the first call from `index` on that counts and was not refunded.
  seek = function(limit, index)
    while index < tail do
      local at, units, positions = entry(index, limit[PER])
      if units > 0 and positions >= limit[POSITION] then
        limit[HEAD], limit[SINCE] = index, at
        return
      end
      index = index + 1
    end
    limit[HEAD], limit[SINCE] = tail, 0
  end
end

local function encode(limit)
  local per, head, since, used = limit[PER], limit[HEAD], limit[SINCE], math.min(limit[USED], MAX_UNITS)
  if is_wide then return pack('<dddI4dH', per, head, since, used, limit[QUOTA], limit[POSITION]) end
  return pack('<dddI4', per, head, since, used)
end

if verb == 'r' then
  local index, amount = unpack('<dd', args, 10)
  -- At the tail or above: the server has lost the charge in a crash.
  if length == 0 or cost ~= created or index < dropped or index >= tail then return 0 end
  local _, units, positions = entry(index, 0)
  local back = math.min(units, amount)
  local slots = {sub(state, 1, 44)}
  for j = 1, counted do
    local limit = limit_at(j)
    if limit[HEAD] <= index and limit[POSITION] <= positions then
      if limit[USED] < MAX_UNITS then limit[USED] = limit[USED] - back end
      if limit[HEAD] == index and back == units then seek(limit, index + 1) end
    end
    slots[j + 1] = encode(limit)
  end
  call('SETRANGE', key, size + call_size * (index - dropped) + 8, pack('<I4', units - back))
  call('SETRANGE', key, '0', table.concat(slots))
  return 1
end

-- Skips the calls that have left the window of a limit or make no difference to it.
local function advance(limit)
  if limit[USED] == MAX_UNITS then
    limit[USED] = 0
    for index = limit[HEAD], tail - 1 do
      local _, units, positions = entry(index, 0)
      if positions >= limit[POSITION] then limit[USED] = limit[USED] + units end
    end
  end
  while limit[HEAD] < tail do
    local is_over = limit[SINCE] <= now - limit[PER]
    if not is_over and (tail - limit[HEAD] <= MIN_KEPT or limit[USED] <= 2 * limit[QUOTA]) then return end
    local _, units = entry(limit[HEAD], 0)
    if not is_over and limit[USED] - units < 2 * limit[QUOTA] then return end
    limit[USED] = limit[USED] - units
    seek(limit, limit[HEAD] + 1)
  end
end

local which, ready = 0, 0
for i = 1, is_settled and 0 or limits do
  local limit = found[i]
  if not limit[IS_KNOWN] then
    -- Other limits: count all calls again.
    seek(limit, dropped)
    limit[USED] = MAX_UNITS
  end
  advance(limit)
  local excess, index, latest = verb == 'd' and 0 or limit[USED] + cost - limit[QUOTA], limit[HEAD], 0
  while excess > 0 do
    local at, units, positions = entry(index, limit[PER])
    if positions >= i and units > 0 then excess, latest = excess - units, math.max(latest, at) end
    index = index + 1
    if excess <= 0 and latest + limit[PER] > ready then which, ready = i, latest + limit[PER] end
  end
end

local charged = which == 0 and verb ~= 'p'
if verb == 'v' then
  for i = 1, limits do
    ahead = math.min(ahead, math.floor((found[i][QUOTA] - found[i][USED] - cost) / SHARE))
  end
  if which > 0 or ahead <= 0 then ahead, lead = 0, 0 end
  cost = cost + ahead
end
-- Time of the new call.
local made = now + lead
if verb == 'd' then
  for i = 1, limits do cost = math.min(cost, math.max(0, MAX_UNITS - found[i][USED])) end
end
local longest_known = 0
for j = 1, are_known and 0 or counted do
  local per = unpack('<d', state, 45 + slot_size * (j - 1))
  if per > longest_known then longest_known = per end
end
-- Numbers are also written if they were counted, so that the next check need not count again, even if it is denied. Those
-- of a limit that is longer than all others also keep the calls, which a peek does not.
local extends_log = longest > longest_known and length > 0
local writes = charged
if not charged and not are_known then
  writes = extends_log and verb ~= 'p' or not extends_log and not is_whole
end
local reply = pack('<dd', which, which == 0 and created or ready - clock)
if verb == 'v' then reply = pack('<d', ahead) .. reply end
for i = 1, limits do
  local limit = found[i]
  local quota, used, more = limit[QUOTA], limit[USED], -1
  if charged then
    if limit[HEAD] == tail then limit[SINCE] = made end
    used = used + cost
    limit[USED] = used
  end
  if used > quota and verb ~= 'd' then
    -- More is in use than the quota, which was larger before or for other calls.
    local excess, index, latest = used + 1 - quota, limit[HEAD], 0
    repeat
      local at, units, positions = entry(index, limit[PER])
      if positions >= i and units > 0 then excess, latest = excess - units, math.max(latest, at) end
      more, index = latest + limit[PER] - clock, index + 1
    until excess <= 0
  elseif used > 0 then
    more = limit[SINCE] + limit[PER] - clock
  end
  reply = reply .. pack('<ddd', tail, used < quota and quota - used or 0, more)
end
if not writes then return reply end

-- The numbers of other limits. Of too many, the shortest are dropped: their calls can be counted again.
local others = {}
for j = 1, (counted > limits or not are_in_place) and counted or 0 do
  local other = limit_at(j)
  local is_other = true
  for i = 1, limits do
    local is_same = found[i][IS_KNOWN] and (not is_wide or i == other[POSITION])
    if is_same and found[i][PER] == other[PER] then is_other = false end
  end
  if is_other then
    advance(other)
    if other[HEAD] < tail then
      local at = #others + 1
      while at > 1 and others[at - 1][PER] < other[PER] do at = at - 1 end
      table.insert(others, at, other)
      others[MAX_OTHERS + 1] = nil
    end
  end
end
local start = tail
for i = 1, limits do start = math.min(start, found[i][HEAD]) end
for i = 1, #others do
  local other = others[i]
  if charged and other[POSITION] <= limits then other[USED] = other[USED] + cost end
  start = math.min(start, other[HEAD])
  longest = math.max(longest, other[PER])
end

-- A call of a '\1L' that becomes another state has as many limits as the state had.
local gone, stay = start - dropped, tail - start
local is_plain = #others == 0 and lead == 0 and (is_wide or limits == counted or stay == 0)
local rewrites = not charged or is_whole or limits + #others ~= counted or not is_wide and not is_plain
  or lead > 0 and kind ~= 0x4c03 or (gone >= MANY and gone >= stay)
local rest = ''
if rewrites then
  if is_whole then
    rest = sub(state, size + call_size * gone + 1)
  elseif stay > 0 then
    rest = call('GETRANGE', key, size + call_size * gone, -1)
  end
  local at = 13
  while is_wide and is_plain and at < #rest do
    is_plain = unpack('<H', rest, at) == limits and (kind == 0x4c02 or unpack('<d', rest, at + 2) == 0)
    at = at + call_size
  end
  local before = kind
  kind = is_plain and 0x4c01 or (lead > 0 or kind == 0x4c03) and 0x4c03 or 0x4c02
  if kind ~= before then
    local parts = {}
    for at = 1, #rest, call_size do
      parts[#parts + 1] = sub(rest, at, at + 11)
      if kind ~= 0x4c01 then parts[#parts + 1] = is_wide and sub(rest, at + 12, at + 13) or pack('<H', counted) end
      if kind == 0x4c03 then parts[#parts + 1] = pack('<d', 0) end
    end
    rest, is_wide = table.concat(parts), kind ~= 0x4c01
  end
  dropped = start
end

if charged then last = now end
local until_idle = (charged and made or last) + longest
local extends = until_idle > expires_at
-- An eighth of the window later than necessary, so that the expiry is seldom set again.
if extends then expires_at = until_idle + longest / 8 end
local at, new = string.format('%d', expires_at / 1000 + 1), ''
if charged then
  new = pack('<dI4', made, cost)
  if is_wide then new = new .. pack('<H', limits) end
  if kind == 0x4c03 then new = new .. pack('<d', lead) end
end
local head =
  pack('<HdddddH', kind, created, last, expires_at, dropped, tail + (charged and 1 or 0), limits + #others)
for i = 1, limits do head = head .. encode(found[i]) end
for i = 1, #others do head = head .. encode(others[i]) end
if not rewrites then
  call('APPEND', key, new)
  call('SETRANGE', key, '0', head)
  if extends then call('PEXPIREAT', key, at) end
else
  -- A full server refuses this after a denial, which is returned nevertheless.
  local set = charged and call or redis.pcall
  if extends then
    set('SET', key, head .. rest .. new, 'PXAT', at)
  else
    set('SET', key, head .. rest .. new, 'KEEPTTL')
  end
end
return reply
