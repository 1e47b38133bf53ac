-- Window::Buckets: rings of buckets of one step each, per / step of them in a window. The calls in a bucket count until
-- all of it is as old as the window: the oldest bucket counts in full. Only buckets with calls are stored.
--
-- For each position among the limits of a check, the rings of up to eight windows are known. A check is decided by its
-- own ring, and charged to all rings of its position, so that no ring loses calls that were made by its limit. A window
-- that is not known yet begins with the calls of another one: of the longest or, if several are as long as the new one,
-- of that with the fewest calls in it, since none counts too few.
--
-- KEYS, ARGV and the reply are documented in prelude.lua. The position of a charge is its time. If that is of the future,
-- `now` follows at the end of the reply. A refund begins with the time of the call, and has three numbers per limit: the
-- number of buckets in a window, the position, and the amount.
--
-- State: '\1B' if each position has one ring; its creation time, the time of the last charge, its time of expiry; then
-- for each position the units in use (four bytes) and the number of buckets (two), and for each bucket its last
-- microsecond and its units (four). Then, in the form of a further ring without usage, the windows: for each position a
-- bucket whose time is minus the window. The previous release, which does not write it, keeps it. A ring without a
-- window is taken for that of the next check.
--
-- Otherwise '\2B', and the same times; then for each position the number of its rings (two bytes), and for each of them
-- its window, the time of its last check, and two times that are zero if it did not begin with calls of another ring:
-- the calls until the first are those of the other ring, and those until the second may be missing. Then the ring.
--
-- '\3B' is a '\2B' with the time of its latest call after the other times, if that is after the last charge: a
-- reservation is a call of the future. Calls are charged in the order of their times, so those that follow count as made
-- at that time, too. In a ring, no time is later than a tenth of its window ahead.

-- Maximum number of rings per position.
local MAX_KNOWN = 8
-- The maximum of four bytes, which is above every quota.
local MAX_UNITS = 4294967295

local state = call('GET', key) or ''
local kind, created, last, expires_at, size, latest = 0x4201, clock, 0, 0, #state, 0
if size > 0 then
  if size < 26 then return redis.error_reply(foreign) end
  kind, created, last, expires_at = unpack('<Hddd', state)
  latest = last
end

-- Fast path for most calls: a check of a single limit that admits it, into an existing bucket, while no bucket leaves
-- the window. It is equivalent to the general path below, with half of the work.
if verb == 'c' and #args == 33 and size >= 62 and kind == 0x4201 and last <= clock then
  local used, count, oldest = unpack('<I4I2d', state, 27)
  if size == 50 + 12 * count and used + cost <= quota then
    local newest, units, _, _, window = unpack('<dI4I4I2d', state, size - 29)
    if window == -per and oldest + per > clock and newest >= clock and newest < last + step then
      used = used + cost
      call('SET', key, pack('<HdddI4I2', kind, created, clock, expires_at, used, count) .. sub(state, 33, size - 30)
        .. pack('<dI4', newest, units + cost) .. sub(state, size - 17), 'KEEPTTL')
      return pack('<ddddd', 0, created, clock, quota - used, oldest + per - clock)
    end
  end
end

-- The same for a check of several limits, which are those of the state.
if verb == 'c' and limits > 1 and kind == 0x4201 and last <= clock and size > 0 then
  local fits, all, reply, after = true, '', pack('<dd', 0, created), 27
  local windows = size - 12 * limits + 1
  for i = 1, limits do
    local quota, per, step = unpack('<ddd', args, 24 * i - 14)
    fits = after + 18 < windows and unpack('<d', state, windows + 12 * (i - 1)) == -per
    if not fits then break end
    local used, count, oldest = unpack('<I4I2d', state, after)
    local from, upto = after + 6, after + 6 + 12 * count
    fits = count > 0 and upto + 6 <= windows and used + cost <= quota and oldest + per > clock
    if not fits then break end
    local newest, units = unpack('<dI4', state, upto - 12)
    fits = newest >= clock and newest < last + step
    if not fits then break end
    used = used + cost
    all = all .. pack('<I4I2', used, count) .. sub(state, from, upto - 13) .. pack('<dI4', newest, units + cost)
    reply = reply .. pack('<ddd', clock, quota - used, oldest + per - clock)
    after = upto
  end
  if fits and after + 6 == windows then
    call('SET', key, pack('<Hddd', kind, created, clock, expires_at) .. all .. sub(state, after), 'KEEPTTL')
    return reply
  end
end

-- A ring is a table: its window, its three times as in '\2B', the units in use, the number of buckets, a string with the
-- buckets, and the offset of the first.
local PER, CHECKED, SINCE, MISSING, USED, COUNT, BUFFER, FROM = 1, 2, 3, 4, 5, 6, 7, 8
local max, min, ceil, floor = math.max, math.min, math.ceil, math.floor

local positions = {}
if size == 0 then
  -- No state.
elseif kind == 0x4201 then
  local from = 27
  while from <= size do
    local used, count, first = unpack('<I4I2', state, from)
    if count > 0 and unpack('<d', state, first) < 0 then
      for i = 1, count == #positions and count or 0 do
        positions[i][1][PER] = -unpack('<d', state, first + 12 * (i - 1))
      end
      break
    end
    positions[#positions + 1] = {{0, last, 0, 0, used, count, state, first}}
    from = first + 12 * count
  end
elseif kind == 0x4202 or kind == 0x4203 then
  local from = 27
  if kind == 0x4203 then latest, from = unpack('<d', state, from) end
  while from < size do
    local known, rings = {}, 0
    rings, from = unpack('<H', state, from)
    for j = 1, rings do
      local per, checked, since, missing, used, count, first = unpack('<ddddI4I2', state, from)
      known[j] = {per, checked, since, missing, used, count, state, first}
      from = first + 12 * count
    end
    positions[#positions + 1] = known
  end
else
  if kind ~= 0x4c01 and kind ~= 0x4c02 and kind ~= 0x4c03 and kind ~= 0x4702 and kind ~= 0x4703 and kind ~= 0x4704
    and kind ~= 0x4705 then
    return redis.error_reply(foreign)
  end
  size, created, last, expires_at, latest = 0, clock, 0, 0, 0
end

-- Returns the time and the units of a bucket, counted from 0.
local function bucket_at(ring, index)
  return unpack('<dI4', ring[BUFFER], ring[FROM] + 12 * index)
end

-- Returns some buckets as they are stored.
local function slice(ring, first, upto)
  local from = ring[FROM]
  return sub(ring[BUFFER], from + 12 * first, from + 12 * upto - 1)
end

-- Replaces all buckets.
local function replace(ring, buffer)
  ring[BUFFER], ring[FROM], ring[COUNT] = buffer, 1, #buffer / 12
end

-- Removes the buckets that have left the window.
local function expire(ring)
  while ring[COUNT] > 0 do
    local bucket, units = bucket_at(ring, 0)
    if bucket + ring[PER] > clock then break end
    ring[USED], ring[COUNT], ring[FROM] = ring[USED] - units, ring[COUNT] - 1, ring[FROM] + 12
  end
end

-- Returns the state as it is stored.
local function encode()
  local is_ahead, list, windows = latest > last, {}, {}
  local is_simple = not is_ahead
  if is_ahead then list[1] = pack('<d', latest) end
  for i = 1, #positions do
    local ring = positions[i][1]
    -- Otherwise it would not be known which charges can be refunded.
    is_simple = is_simple and #positions[i] == 1 and (ring[SINCE] == 0 or ring[SINCE] + ring[PER] <= clock)
  end
  for i = 1, #positions do
    local known = positions[i]
    if not is_simple then list[#list + 1] = pack('<H', #known) end
    for j = 1, #known do
      local ring = known[j]
      if not is_simple then
        list[#list + 1] = pack('<dddd', ring[PER], ring[CHECKED], ring[SINCE], ring[MISSING])
      end
      list[#list + 1] = pack('<I4I2', ring[USED], ring[COUNT])
      list[#list + 1] = slice(ring, 0, ring[COUNT])
    end
    windows[i] = pack('<dI4', -known[1][PER], 0)
  end
  if is_simple and positions[1] and positions[1][1][PER] > 0 then
    list[#list + 1] = pack('<I4I2', 0, #windows)
    list[#list + 1] = table.concat(windows)
  end
  local kind = is_simple and 0x4201 or is_ahead and 0x4203 or 0x4202
  return pack('<Hddd', kind, created, last, expires_at) .. table.concat(list)
end

if last > clock then
  local behind = last - clock
  created, last, expires_at, latest = clock, clock, expires_at - behind, latest - behind
  for i = 1, #positions do
    for j = 1, #positions[i] do
      local ring, pieces = positions[i][j], {}
      for index = 0, ring[COUNT] - 1 do
        local bucket, units = bucket_at(ring, index)
        pieces[index + 1] = pack('<dI4', bucket - behind, units)
      end
      replace(ring, table.concat(pieces))
      ring[CHECKED] = ring[CHECKED] - behind
      if ring[SINCE] > 0 then
        ring[SINCE], ring[MISSING] = max(1, ring[SINCE] - behind), max(0, ring[MISSING] - behind)
      end
    end
  end
  call('SET', key, encode(), 'KEEPTTL')
end
local now = clock

-- Takes units from the buckets from `index` on that end at `upto` or before.
local function take(ring, index, upto, units)
  while units > 0 and index < ring[COUNT] do
    local bucket, stored = bucket_at(ring, index)
    if bucket > upto then return end
    local back = min(stored, units)
    units, ring[USED] = units - back, ring[USED] - back
    local left = back < stored and pack('<dI4', bucket, stored - back) or ''
    replace(ring, slice(ring, 0, index) .. left .. slice(ring, index + 1, ring[COUNT]))
    if left ~= '' then index = index + 1 end
  end
end

-- Returns the time in a ring of a call of `from` that counts as made at `made`.
local function time_in(per, made, from)
  return min(made, from + ceil(per / LEAD_SHARE))
end

-- Returns the time at which a derived ring counts the calls of a bucket. Those in the newest came no later than `since`.
local function derived_time(since, step, bucket)
  return since - floor(max(0, since - bucket) / step) * step
end

-- Returns the earliest bucket of the rings that recorded a call themselves; without one, the time of the call. All rings
-- from which calls were derived are still known, unless there were too many.
local function recorded_in(known, number, called_at, made)
  local earliest
  for j = 1, #known do
    local ring = known[j]
    local at = time_in(ring[PER], made, called_at)
    if at > ring[SINCE] then
      for index = 0, ring[COUNT] - 1 do
        local bucket = bucket_at(ring, index)
        if bucket >= at then
          if bucket < at + ceil(ring[PER] / number) then earliest = min(earliest or bucket, bucket) end
          break
        end
      end
    end
  end
  return #known < MAX_KNOWN and earliest or made
end

if verb == 'r' then
  if size == 0 or cost ~= created then return 0 end
  local called_at = unpack('<d', args, 10)
  for i = 1, min(#positions, (#args - 17) / 24) do
    local number, made, amount = unpack('<ddd', args, 24 * i - 6)
    local known = positions[i]
    local recorded = recorded_in(known, number, called_at, made)
    for j = 1, #known do
      local ring = known[j]
      -- Without a window: written by the previous release.
      if ring[PER] == 0 then break end
      local step, since, at = ceil(ring[PER] / number), ring[SINCE], time_in(ring[PER], made, called_at)
      -- The bucket that has the call.
      local from, upto = at, at + step - 1
      if at <= since then
        -- A call of another ring: this bucket or a later one, since the other may have longer steps. Nothing is taken if
        -- it may have left the window already.
        from, upto = derived_time(since, step, max(at, recorded)), since
      end
      expire(ring)
      if at > ring[MISSING] and (upto > since or from + ring[PER] > now) then
        local index = 0
        while index < ring[COUNT] and bucket_at(ring, index) < from do index = index + 1 end
        take(ring, index, upto, amount)
      end
    end
  end
  call('SET', key, encode(), 'KEEPTTL')
  return 1
end

-- Returns the ring of a window with the calls of another ring.
local function derived(source, per, step)
  local since = time_in(per, latest, now)
  -- A call of this microsecond is not missing.
  local ring = {per, now, since, min(since, now - 1), 0, 0, '', 1}
  if source[COUNT] == 0 then return ring end
  -- The oldest bucket has the calls of one step.
  ring[MISSING] = min(max(bucket_at(source, 0) - ceil(source[PER] * step / per), source[MISSING]), now - 1)
  local pieces, position, sum = {}, 0, 0
  for index = 0, source[COUNT] - 1 do
    local bucket, units = bucket_at(source, index)
    local at = derived_time(since, step, bucket)
    if at + per > now then
      if at > position then position, sum, pieces[#pieces + 1] = at, 0, '' end
      sum, ring[USED] = sum + units, ring[USED] + units
      pieces[#pieces] = pack('<dI4', at, sum)
    end
  end
  replace(ring, table.concat(pieces))
  return ring
end

-- Returns the ring of a window that is not known yet.
local function derive(known, per, step)
  local source, ring = {0, now, 0, 0, 0, 0, '', 1}, nil
  for j = 1, #known do
    local other = known[j]
    if other[PER] >= per then
      local candidate = derived(other, per, step)
      local fewer = ring and candidate[USED] - ring[USED] or -1
      if fewer < 0 or fewer == 0 and other[PER] < source[PER] then source, ring = other, candidate end
    elseif not ring and other[PER] > source[PER] then
      source = other
    end
  end
  -- It is kept as long as its calls are in the new window: a refund finds there in which bucket it has the call.
  source[CHECKED] = now
  return ring or derived(source, per, step)
end

-- For each limit its ring.
local own = {}
local which, ready, writes = 0, 0, false
for i = 1, limits do
  local quota, per, step = unpack('<ddd', args, 24 * i - 14)
  local known = positions[i] or {}
  local ring
  for j = 1, #known do
    local other = known[j]
    if other[PER] == 0 then other[PER] = per end
    expire(other)
    if other[PER] == per then ring = other end
  end
  if not ring then
    ring = derive(known, per, step)
    -- A denial keeps it too: the other rings may lose the calls sooner.
    writes = writes or #known > 0
    known[#known + 1] = ring
    positions[i] = known
  end
  local count, newest = ring[COUNT], time_in(per, latest, now)
  if count > 0 and bucket_at(ring, count - 1) >= newest + step then
    -- Written with longer steps. The calls in the newest bucket came no later than the latest call.
    local _, units = bucket_at(ring, count - 1)
    replace(ring, slice(ring, 0, count - 1) .. pack('<dI4', newest, units))
    expire(ring)
  end
  if #known > 1 and ring[CHECKED] + per / 2 <= now then writes = true end
  ring[CHECKED] = now
  own[i] = ring
  local excess, index = verb == 'd' and 0 or ring[USED] + cost - quota, 0
  while excess > 0 do
    local bucket, units = bucket_at(ring, index)
    excess, index = excess - units, index + 1
    if excess <= 0 and bucket + per > ready then which, ready = i, bucket + per end
  end
end

local charged = which == 0 and verb ~= 'p'
if verb == 'v' then
  for i = 1, limits do
    local quota = unpack('<d', args, 24 * i - 14)
    ahead = min(ahead, floor((quota - own[i][USED] - cost) / SHARE))
  end
  if which > 0 or ahead <= 0 then ahead, lead = 0, 0 end
  cost = cost + ahead
end
-- Time of the new call. Never before another call, so that a refund finds its bucket within a step.
local made = max(now + lead, latest)

-- Charges the cost to a ring.
local function charge(ring, step)
  local count, used = ring[COUNT], ring[USED]
  local units = min(cost, MAX_UNITS - used)
  -- The first bucket ends with its first call, which then leaves after exactly one window. Later buckets follow in whole
  -- steps.
  local position = time_in(ring[PER], made, now)
  ring[USED] = used + units
  if count > 0 then
    local newest, in_it = bucket_at(ring, count - 1)
    if newest >= position then
      position, units, count = newest, units + in_it, count - 1
    else
      position = newest + ceil((position - newest) / step) * step
    end
  end
  replace(ring, slice(ring, 0, count) .. pack('<dI4', position, units))
end

for i = 1, charged and limits or 0 do
  local _, per, step = unpack('<ddd', args, 24 * i - 14)
  local known, stays = positions[i], {}
  local longest, soonest, soonest_end = 0, nil, nil
  for j = 1, #known do longest = max(longest, known[j][PER]) end
  for j = 1, #known do
    local ring = known[j]
    local is_own = ring == own[i]
    -- Others are kept if they are the longest or were checked within its window: calls are less exact in a new ring.
    if is_own or ring[CHECKED] + longest > now or ring[PER] == longest and ring[USED] > 0 then
      charge(ring, is_own and step or ceil(ring[PER] * step / per))
      stays[#stays + 1] = ring
      local until_idle = bucket_at(ring, ring[COUNT] - 1) + ring[PER]
      if not is_own and (not soonest or until_idle < soonest_end) then
        soonest, soonest_end = #stays, until_idle
      end
    end
  end
  if #stays > MAX_KNOWN then table.remove(stays, soonest) end
  positions[i] = stays
end

local reply = pack('<dd', which, which == 0 and created or ready - clock)
if verb == 'v' then reply = pack('<d', ahead) .. reply end
for i = 1, limits do
  local quota, per = unpack('<dd', args, 24 * i - 14)
  local ring = own[i]
  local used, more = ring[USED], -1
  if used > quota and verb ~= 'd' then
    -- More is in use than the quota, which was larger before or for other calls.
    local excess, index = used + 1 - quota, 0
    repeat
      local bucket, units = bucket_at(ring, index)
      more, excess, index = bucket + per - clock, excess - units, index + 1
    until excess <= 0
  elseif used > 0 then
    more = bucket_at(ring, 0) + per - clock
  end
  reply = reply .. pack('<ddd', made, used < quota and quota - used or 0, more)
end
if made > now then reply = reply .. pack('<d', now) end

if charged or writes and verb ~= 'p' then
  -- A full server refuses this after a denial, which is returned nevertheless.
  local set = charged and call or redis.pcall
  if charged then last, latest = now, made end
  -- Positions beyond those of the check are dropped with their last usage.
  for i = #positions, limits + 1, -1 do
    local is_used = false
    for j = 1, #positions[i] do
      local ring = positions[i][j]
      if ring[PER] > 0 then expire(ring) end
      is_used = is_used or ring[USED] > 0
    end
    if is_used then break end
    positions[i] = nil
  end
  local expiry = expires_at
  for i = 1, #positions do
    for j = 1, #positions[i] do
      local ring = positions[i][j]
      if ring[COUNT] > 0 then expiry = max(expiry, bucket_at(ring, ring[COUNT] - 1) + ring[PER]) end
    end
  end
  if expiry > expires_at then
    expires_at = expiry
    set('SET', key, encode(), 'PXAT', string.format('%d', expiry / 1000 + 1))
  else
    set('SET', key, encode(), 'KEEPTTL')
  end
end
return reply
