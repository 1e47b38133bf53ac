-- Window::Buckets: parts of the window, one step each, of which there are per / step. What came in one counts
-- until all of it is as old as the window: the oldest counts in full. Only parts in which calls passed are
-- kept.
--
-- KEYS, ARGV and what is returned are those of prelude.lua. A mark is a part's last microsecond.
--
-- The state: '\1B'; its birth, the time of the last charge, when the key may leave; then for each limit the
-- units in use (four bytes) and how many parts there are (two), and for each part its last microsecond and its
-- units (four).

local state = call('GET', key) or ''
local kind, born, last, dies, size = 0x4201, clock, 0, 0, #state
if size > 0 then
  if size < 26 then return redis.error_reply(foreign) end
  kind, born, last, dies = unpack('<Hddd', state)
  if kind ~= 0x4201 then return redis.error_reply(foreign) end
end
if last > clock then
  local ahead, at, parts = last - clock, 27, {}
  born, last, dies = clock, clock, dies - ahead
  while at <= size do
    local used, count, from = unpack('<I4I2', state, at)
    parts[#parts + 1] = pack('<I4I2', used, count)
    at = from + 12 * count
    for part = from, at - 12, 12 do
      parts[#parts + 1] = pack('<d', unpack('<d', state, part) - ahead) .. sub(state, part + 8, part + 11)
    end
  end
  state = pack('<Hddd', kind, born, last, dies) .. table.concat(parts)
  call('SET', key, state, 'KEEPTTL')
end
local now = clock

-- What most calls are: a check of the one limit that there is, which has room, in a part that is there, while nothing leaves.
-- It comes to the same as what follows, with half of the work.
if verb == 'c' and #args == 33 and size >= 44 then
  local used, count, from = unpack('<I4I2', state, 27)
  local quota, per, step = unpack('<ddd', args, 10)
  if size == 32 + 12 * count and used + cost <= quota then
    local oldest = unpack('<d', state, from)
    local newest, units = unpack('<dI4', state, size - 11)
    if oldest + per > now and newest >= now and newest < last + step then
      used = used + cost
      call('SET', key, pack('<HdddI4I2', kind, born, now, dies, used, count) .. sub(state, from, size - 12)
        .. pack('<dI4', newest, units + cost), 'KEEPTTL')
      return pack('<ddddd', 0, born, newest, quota - used, oldest + per - now)
    end
  end
end

-- Where the next limit begins.
local after = 27

if verb == 'r' then
  if size == 0 or cost ~= born then return 0 end
  local parts = {sub(state, 1, 26)}
  for i = 1, (#args - 9) / 16 do
    local mark, amount = unpack('<dd', args, 16 * i - 6)
    if after > size then break end
    local used, count, from = unpack('<I4I2', state, after)
    local upto = from + 12 * count
    after = upto
    local list = sub(state, from, upto - 1)
    for at = upto - 12, from, -12 do
      local part, units = unpack('<dI4', state, at)
      if part == mark then
        local back = math.min(units, amount)
        used = used - back
        local left = back < units and pack('<dI4', part, units - back) or ''
        count = count - (left == '' and 1 or 0)
        list = sub(state, from, at - 1) .. left .. sub(state, at + 12, upto - 1)
        break
      end
    end
    parts[i + 1] = pack('<I4I2', used, count) .. list
  end
  call('SET', key, table.concat(parts) .. sub(state, after), 'KEEPTTL')
  return 1
end

-- For each limit: the units in use, how many parts they are in, where these begin and end, and when the oldest
-- is.
local found = {}
local which, ready = 0, 0
for i = 1, limits do
  local quota, per, step = unpack('<ddd', args, 24 * i - 14)
  local used, count, from, oldest = 0, 0, after, now
  if after <= size then used, count, from = unpack('<I4I2', state, after) end
  after = from + 12 * count
  if count > 0 and unpack('<d', state, after - 12) >= last + step then
    -- Another plan has longer parts. What is in its newest came by the last charge.
    state = sub(state, 1, after - 13) .. pack('<d', last) .. sub(state, after - 4)
  end
  while count > 0 do
    local part, units = unpack('<dI4', state, from)
    if part + per > now then
      oldest = part
      break
    end
    used, count, from = used - units, count - 1, from + 12
  end
  local excess, at = verb == 'd' and 0 or used + cost - quota, from
  while excess > 0 do
    local part, units = unpack('<dI4', state, at)
    excess, at = excess - units, at + 12
    if excess <= 0 and part + per > ready then which, ready = i, part + per end
  end
  found[i] = {used, count, from, after, oldest}
end

local charged = which == 0 and verb ~= 'p'
local reply, all, mark = pack('<dd', which, which == 0 and born or ready - clock), '', 0
local leaves = dies
for i = 1, limits do
  local quota, per, step = unpack('<ddd', args, 24 * i - 14)
  local limit = found[i]
  local used, count, from, upto = limit[1], limit[2], limit[3], limit[4]
  if charged then
    -- Four bytes hold no more: whatever it is, it is above every quota.
    local units = math.min(cost, 4294967295 - used)
    used = used + units
    -- A part begins so that what is charged first leaves after the window, and not a part later.
    mark = now
    if count > 0 then
      local newest, in_it = unpack('<dI4', state, upto - 12)
      if newest >= now then
        mark, units, upto, count = newest, units + in_it, upto - 12, count - 1
      else
        mark = newest + math.ceil((now - newest) / step) * step
      end
    end
    count = count + 1
    local list = sub(state, from, upto - 1)
    all = all .. pack('<I4I2', used, count) .. list .. pack('<dI4', mark, units)
    if mark + per > leaves then leaves = mark + per end
  end
  local more = -1
  if used > quota and verb ~= 'd' then
    -- A plan of a smaller quota finds more in use than it has.
    local excess, at = used + 1 - quota, from
    repeat
      local part, units = unpack('<dI4', state, at)
      more, excess, at = part + per - clock, excess - units, at + 12
    until excess <= 0
  elseif used > 0 then
    more = limit[5] + per - clock
  end
  reply = reply .. pack('<ddd', mark, used < quota and quota - used or 0, more)
end

if charged then
  -- What limits beyond these have in use stays.
  if after <= size then all = all .. sub(state, after) end
  all = pack('<Hddd', kind, born, now, leaves) .. all
  if leaves > dies then
    call('SET', key, all, 'PXAT', string.format('%d', leaves / 1000 + 1))
  else
    call('SET', key, all, 'KEEPTTL')
  end
end
return reply
