-- Window::Gcra, the generic cell rate algorithm (ITU-T I.371). Each limit has a bucket that leaks one unit per step. For
-- each position among the limits of a check, the buckets of up to eight limits are known. A check is decided by its own
-- buckets, and charged to these; it is also noted in the other buckets of the same position, which it fills up to their
-- quotas, or to as many units as are in use by its own bucket if that leaks faster. So no bucket loses the calls of its
-- own limit. A limit that is not known yet begins with the largest of two numbers of units. By the known limit that
-- leaks as slowly, or slower by the least: those that were in use right after the last charge. By limits that leak
-- faster: those in use now, since they do not know what has leaked. Until a check makes the limit known, these leak by
-- the faster limit.
--
-- KEYS and ARGV are documented in prelude.lua, and so is the reply except for its numbers per limit. A step of a
-- millisecond or more is a whole number of microseconds; a shorter one has a fraction. A check returns 0 and the
-- creation time, or the limit with the longest wait and that wait; `now`; then for each limit the time until its bucket
-- is empty, and its level. After these follow the charges that were noted: the position among the limits, the step, the
-- quota, the level, and the amount, which is the time in which it leaks. A refund has the time of the check, and then
-- these five numbers for each charge.
--
-- The level is the sum of all charges of a bucket. It only decreases if its last charge is refunded. So the difference
-- of two levels is the amount that was charged in between. A part of a reservation that is given back stays in the level,
-- since more parts may follow: the amount in between is then too large, and the rest of the reservation smaller.
--
-- A reservation is a call of the future. Nothing of it leaks before its time, so it is charged to a bucket that is not
-- empty until then, or until a tenth of the limit. For limits that have not drawn them, units count as used when they are
-- drawn. So a bucket also has its usage: the time until it would be empty if all units had been used when they were
-- drawn.
--
-- State: '\3G' if each position has one limit with a step of a millisecond or more; its creation time, the time of the
-- last charge, and its time of expiry. Then for each position the time at which the bucket is empty, a number which is
-- added to it for the level (relative to the creation time), and the step, or zero if it is not known. Then the quotas
-- of all positions, three numbers in a group, filled up with zeros. The previous release knows no quotas, and keeps
-- each group as a further limit without usage, since no time is that small. It ignores the quota, and converts
-- the state if the step has changed. States without quotas are read, and so is the former '\2G', without steps.
--
-- Otherwise '\4G', and the same times; then for each position the number of its limits (two bytes), and for each of them
-- its quota, its step, the time from the last charge until its bucket is empty, its level, the time at which it began,
-- or zero if it is as old as the state, and the time of its last check. '\5G' is a '\4G' with the time of its latest
-- call after the other times, and the usage of each bucket, from the last charge on: while that time is after the last
-- charge, or the usage is less than the time until the bucket is empty.

-- Maximum number of limits per position.
local MAX_KNOWN = 8
-- Steps below are fractions, and charges may be above the quota by rounding errors: by less than this part of a unit.
local MILLISECOND, TOLERANCE = 1000, 1e-4

local state = call('GET', key)

-- Fast path for most calls: a check of a single limit that admits it, without a later expiry of the key. It is
-- equivalent to the general path below, with half of the work. It returns the new state, which has all numbers of the
-- reply, instead of formatting these once more.
if verb == 'c' and #args == 33 and state then
  if #state == 74 then
    local kind, created, last, expires_at, at, back, known, of = unpack('<Hddddddd', state)
    at = (at > clock and at or clock) + step * cost
    if kind == 0x4703 and known == step and of == quota and last <= clock and at - step * quota <= clock
      and at <= expires_at then
      state = pack('<Hddddddddd', kind, created, clock, expires_at, at, back, step, quota, 0, 0)
      call('SET', key, state, 'KEEPTTL')
      return state
    end
  elseif #state == 76 then
    local kind, created, last, expires_at, count, of, known, left, level, began = unpack('<HdddHddddd', state)
    if kind == 0x4704 and count == 1 and known == step and of == quota and last <= clock then
      left = left - (clock - last)
      left = (left > 0 and left or 0) + step * cost
      if left <= step * (quota + TOLERANCE) and clock + left <= expires_at then
        level = level + step * cost
        state = pack('<HdddHdddddd', kind, created, clock, expires_at, 1, quota, step, left, level, began, clock)
        call('SET', key, state, 'KEEPTTL')
        return state
      end
    end
  end
end

-- The same for a check of several limits, which are those of the state.
if verb == 'c' and state and limits > 1 and #state == 26 + 24 * (limits + math.ceil(limits / 3)) then
  local kind, created, last, expires_at = unpack('<Hddd', state)
  local fits = kind == 0x4703 and last <= clock
  local times, reply, quotas = '', pack('<ddd', 0, created, clock), 27 + 24 * limits
  for i = 1, fits and limits or 0 do
    local quota, _, step = unpack('<ddd', args, 24 * i - 14)
    local at, back, known = unpack('<ddd', state, 3 + 24 * i)
    at = (at > clock and at or clock) + step * cost
    fits = known == step and unpack('<d', state, quotas + 8 * (i - 1)) == quota and at - step * quota <= clock
      and at <= expires_at
    if not fits then break end
    times = times .. pack('<ddd', at, back, step)
    reply = reply .. pack('<dd', at - clock, at + back - created)
  end
  if fits then
    call('SET', key, pack('<Hddd', kind, created, clock, expires_at) .. times .. sub(state, quotas), 'KEEPTTL')
    return reply
  end
end

-- A bucket is a table of seven numbers, as in '\5G', and the amount of the present charge.
local QUOTA, STEP, LEFT, LEVEL, BEGAN, CHECKED, USAGE, GROWN = 1, 2, 3, 4, 5, 6, 7, 8
local max, min, ceil = math.max, math.min, math.ceil

local kind, created, last, expires_at, size, latest = 0x4703, clock, 0, 0, state and #state or 0, 0
local positions = {}
if state then
  if size < 26 then return redis.error_reply(foreign) end
  kind, created, last, expires_at = unpack('<Hddd', state)
  latest = last
  if kind == 0x4704 or kind == 0x4705 then
    local count, from, numbers = 0, 27, '<dddddd'
    if kind == 0x4705 then
      latest, from = unpack('<d', state, from)
      numbers = '<ddddddd'
    end
    while from < size do
      local known = {}
      count, from = unpack('<H', state, from)
      for j = 1, count do
        known[j] = {unpack(numbers, state, from)}
        if kind == 0x4704 then known[j][USAGE] = known[j][LEFT] end
        from = from + 8 * (#numbers - 1)
      end
      positions[#positions + 1] = known
    end
  elseif kind == 0x4703 or kind == 0x4702 and verb ~= 'r' then
    local width = kind == 0x4703 and 24 or 16
    local stored = (size - 26) / width
    for i = 1, stored do
      local from = 27 + width * (i - 1)
      local at, back = unpack('<dd', state, from)
      if at >= 1 and at < 4294967296 then
        -- The quotas begin here. If a process of the previous release has overwritten some, none are known.
        if stored - #positions == ceil(#positions / 3) then
          for j = 1, #positions do positions[j][1][QUOTA] = unpack('<d', state, from + 8 * (j - 1)) end
        end
        break
      end
      local known = width == 24 and unpack('<d', state, from + 16) or 0
      local left = max(0, at - last)
      positions[i] = {{0, known, left, at + back - created, 0, last, left}}
    end
  else
    -- No process has a permit for a charge in '\2G' that it could refund here.
    if kind ~= 0x4c01 and kind ~= 0x4c02 and kind ~= 0x4c03 and kind ~= 0x4201 and kind ~= 0x4202 and kind ~= 0x4203
      and kind ~= 0x4702 then
      return redis.error_reply(foreign)
    end
    state, created, last, expires_at, latest = nil, clock, 0, 0, 0
  end
end

-- Returns the state as it is stored.
local function encode()
  local is_ahead, list, quotas = latest > last, {}, {}
  for i = 1, #positions do
    for j = 1, #positions[i] do
      local bucket = positions[i][j]
      is_ahead = is_ahead or bucket[USAGE] < bucket[LEFT]
    end
  end
  local is_simple = not is_ahead
  if is_ahead then list[1] = pack('<d', latest) end
  for i = 1, #positions do
    local known = positions[i]
    local bucket = known[1]
    is_simple = is_simple and #known == 1 and (bucket[STEP] >= MILLISECOND or bucket[STEP] == 0)
      -- Otherwise permits for charges to an earlier bucket of the same limit could be refunded.
      and bucket[BEGAN] == 0
  end
  for i = 1, #positions do
    local known = positions[i]
    if is_simple then
      local bucket = known[1]
      local at = last + bucket[LEFT]
      list[i] = pack('<ddd', at, bucket[LEVEL] + created - at, bucket[STEP])
      quotas[i] = pack('<d', bucket[QUOTA])
    else
      list[#list + 1] = pack('<H', #known)
      for j = 1, #known do
        local bucket = known[j]
        list[#list + 1] = pack('<dddddd', bucket[1], bucket[2], bucket[3], bucket[4], bucket[5], bucket[6])
        if is_ahead then list[#list + 1] = pack('<d', bucket[USAGE]) end
      end
    end
  end
  if is_simple and positions[1] and positions[1][1][QUOTA] > 0 then
    while #quotas % 3 > 0 do quotas[#quotas + 1] = pack('<d', 0) end
    list[#list + 1] = table.concat(quotas)
  end
  local kind = is_simple and 0x4703 or is_ahead and 0x4705 or 0x4704
  return pack('<Hddd', kind, created, last, expires_at) .. table.concat(list)
end

if last > clock then
  local behind = last - clock
  created, last, expires_at, latest = clock, clock, expires_at - behind, latest - behind
  for i = 1, #positions do
    for j = 1, #positions[i] do
      local bucket = positions[i][j]
      if bucket[BEGAN] > 0 then bucket[BEGAN] = max(1, bucket[BEGAN] - behind) end
      bucket[CHECKED] = bucket[CHECKED] - behind
    end
  end
  call('SET', key, encode(), 'KEEPTTL')
end
local now = clock
-- Amount that each bucket has leaked since the last charge.
local leaked = now - last

-- Returns the time until a bucket is empty without a charge; `since` is what was charged after it, nil if it was the last.
local function without(left, amount, since, latest)
  if not since then return max(0, left - amount) end
  -- Two upper bounds. By the first, charges leak in their order; by the second, all later ones were made when the latest
  -- one was. Nothing of calls of the future has leaked.
  local leaks_last = left - min(amount, max(0, left - leaked - since - max(0, latest - now)))
  return min(left, leaks_last, max(left - amount, since + latest - last))
end

if verb == 'r' then
  if not state or cost ~= created then return 0 end
  local at = unpack('<d', args, 10)
  -- The level before the refund, of which each charge changes that of one bucket.
  for i = 1, #positions do
    for j = 1, #positions[i] do positions[i][j][GROWN] = positions[i][j][LEVEL] end
  end
  for from = 18, #args, 40 do
    local i, step, quota, level, amount = unpack('<ddddd', args, from)
    local known, stays, is_used = positions[i] or {}, {}, false
    for j = 1, #known do
      local bucket = known[j]
      local left = bucket[LEFT]
      -- A bucket that began after the charge, with units of others, begins again, unless the others are empty.
      if bucket[BEGAN] < at or bucket[GROWN] > 0 then
        stays[#stays + 1] = bucket
        is_used = is_used or left > leaked
      end
      local is_same = bucket[STEP] == step and (bucket[QUOTA] == quota or bucket[QUOTA] == 0)
      if is_same and at >= bucket[BEGAN] then
        local since = bucket[LEVEL] - level
        if since <= step * TOLERANCE then
          -- It was the last charge.
          if not is_part then bucket[LEVEL] = bucket[LEVEL] - amount end
          since = nil
        end
        bucket[LEFT] = without(left, amount, since, min(latest, last + ceil(quota * step / LEAD_SHARE)))
        bucket[USAGE] = without(bucket[USAGE], amount, since, last)
      end
    end
    if is_used then positions[i] = stays end
  end
  call('SET', key, encode(), 'KEEPTTL')
  return 1
end

-- For each limit its bucket.
local own = {}
local which, ready, writes = 0, 0, false
for i = 1, limits do
  local quota, _, step = unpack('<ddd', args, 24 * i - 14)
  local known = positions[i] or {}
  local bucket, slower, units, later = nil, nil, 0, 0
  for j = 1, #known do
    local other = known[j]
    if other[STEP] == 0 then other[STEP] = step end
    if other[QUOTA] == 0 then
      other[QUOTA] = other[STEP] == step and quota or max(1, ceil(other[LEFT] / other[STEP]))
    end
    if other[QUOTA] == quota and other[STEP] == step then bucket = other end
    if other[USAGE] > leaked and other[STEP] < step then
      units = max(units, (other[USAGE] - leaked) / other[STEP])
      later = max(later, other[USAGE] - leaked - (quota - cost) * other[STEP])
    elseif other[USAGE] > leaked and not (slower and slower[STEP] <= other[STEP]) then
      slower = other
    end
  end
  local is_unknown = not bucket
  -- By the slower one, from the last charge on.
  local of_slower = slower and slower[USAGE] / slower[STEP] * step or 0
  if is_unknown then
    local left = of_slower
    if units > 0 then left = max(left, leaked + units * step) end
    if step >= MILLISECOND then left = ceil(left) end
    bucket = {quota, step, left, 0, state and now or 0, now, left}
    -- A denial keeps it too: the other limits may forget the usage sooner.
    writes = writes or #known > 0
    known[#known + 1] = bucket
    positions[i] = known
  end
  if #known > 1 and bucket[CHECKED] + quota * step / 2 <= now then writes = true end
  -- Or later, by as long as a debt counts for longer than the window.
  bucket[CHECKED] = now + max(0, bucket[LEFT] - leaked - quota * step)
  own[i] = bucket
  -- Time until enough has leaked for the cost.
  local wait = max(0, bucket[LEFT] - leaked) + step * cost - step * quota
  if is_unknown and verb == 'p' and units > 0 then
    of_slower = of_slower - leaked
    wait = max(later, of_slower + step * cost - step * quota)
    -- The same for one unit more than remains.
    local used = ceil(max(units, of_slower / step))
    local remaining = max(0, quota - used)
    local more = of_slower - step * (quota - remaining - 1)
    for j = 1, #known do
      local other = known[j]
      if other ~= bucket and other[STEP] < step and other[USAGE] > leaked then
        more = max(more, other[USAGE] - leaked - (quota - remaining - 1) * other[STEP])
      end
    end
    -- A peek charges nothing, so its reply needs no level.
    bucket[LEVEL] = -max(1, ceil(more))
  end
  if wait > (step < MILLISECOND and step * TOLERANCE or 0) and verb ~= 'd' and wait > ready then
    which, ready = i, wait
  end
end

local charged = which == 0 and verb ~= 'p'
if verb == 'v' then
  for i = 1, limits do
    local quota, _, step = unpack('<ddd', args, 24 * i - 14)
    local left = max(own[i][LEFT] - leaked, lead)
    ahead = min(ahead, math.floor((quota - left / step - cost + TOLERANCE) / SHARE))
  end
  if which > 0 or ahead <= 0 then ahead, lead = 0, 0 end
  cost = cost + ahead
end
local noted, expiry = '', expires_at
for i = 1, charged and #positions or 0 do
  local known, stays = positions[i], {}
  local longest, soonest, charged_usage, charged_step = 0, nil, 0, nil
  for j = 1, #known do longest = max(longest, known[j][QUOTA] * known[j][STEP]) end
  if i <= limits then
    charged_step = own[i][STEP]
    charged_usage = max(0, own[i][USAGE] - leaked) + charged_step * cost
  end
  for j = 1, #known do
    local bucket = known[j]
    local per = bucket[QUOTA] * bucket[STEP]
    local left = max(i <= limits and min(lead, ceil(per / LEAD_SHARE)) or 0, bucket[LEFT] - leaked)
    local usage = max(0, bucket[USAGE] - leaked)
    local is_own = bucket == own[i]
    -- Others are kept if they were checked within the time of the longest, or are in use for longer, as by a debt. The
    -- longest itself is kept while it is in use.
    if is_own or i > limits or bucket[CHECKED] + longest > now or left > longest or per == longest and left > 0 then
      local grown = 0
      if is_own then
        grown = bucket[STEP] * cost
        usage = usage + grown
      elseif i <= limits then
        local all, units = bucket[STEP] * cost, 0
        if charged_step < bucket[STEP] then
          units = charged_usage / charged_step * bucket[STEP]
          if bucket[STEP] >= MILLISECOND then units = ceil(units) end
        end
        grown = max(min(left + all, max(left, per)), units) - left
        usage = max(min(usage + all, max(usage, per)), units)
      end
      bucket[LEFT], bucket[LEVEL], bucket[GROWN] = left + grown, bucket[LEVEL] + grown, grown
      bucket[USAGE] = usage
      stays[#stays + 1] = bucket
      if not is_own and (not soonest or bucket[LEFT] < stays[soonest][LEFT]) then soonest = #stays end
    end
  end
  if #stays > MAX_KNOWN then table.remove(stays, soonest) end
  positions[i] = stays
  for j = 1, #stays do
    local bucket = stays[j]
    if bucket ~= own[i] and bucket[GROWN] > 0 then
      noted = noted .. pack('<ddddd', i, bucket[STEP], bucket[QUOTA], bucket[LEVEL], bucket[GROWN])
    end
  end
end
-- Positions beyond those of the check are dropped with their last usage.
for i = charged and #positions or 0, limits + 1, -1 do
  local is_used = false
  for j = 1, #positions[i] do is_used = is_used or positions[i][j][LEFT] > 0 end
  if is_used then break end
  positions[i] = nil
end
if charged then last, leaked, latest = now, 0, max(latest, now + lead) end

local reply = pack('<ddd', which, which == 0 and created or ceil(ready), now)
if verb == 'v' then reply = pack('<d', ahead) .. reply end
for i = 1, limits do
  local bucket = own[i]
  reply = reply .. pack('<dd', max(0, bucket[LEFT] - leaked), bucket[LEVEL])
end
if charged or writes and verb ~= 'p' then
  -- A full server refuses this after a denial, which is returned nevertheless.
  local set = charged and call or redis.pcall
  for i = 1, #positions do
    for j = 1, #positions[i] do expiry = max(expiry, last + positions[i][j][LEFT]) end
  end
  if expiry > expires_at then
    -- An eighth later than necessary, so that the expiry is seldom set again.
    expires_at = expiry + max(0, expiry - clock) / 8
    -- A debt may take longer to leak than the server can count.
    set('SET', key, encode(), 'PXAT', string.format('%d', min(expires_at / 1000 + 1, 2 ^ 53)))
  else
    set('SET', key, encode(), 'KEEPTTL')
  end
end
return reply .. noted
