-- Parts of the window, one step each, of which there are per / step. What came in one counts until all of it is
-- as old as the window: the oldest counts in full. Only parts in which calls passed are kept.
--
-- The state: '\1B'; its birth, the time of the last charge, when the key may leave (eight bytes each); then for
-- each limit the units in use (four) and how many parts there are (two), and for each part its last microsecond
-- (eight) and its units (four).

local state = call('GET', key) or ''
local kind, born, last, dies, size = 0x4201, clock, 0, 0, #state
if size > 0 then
  if size < 26 then return redis.error_reply(foreign) end
  kind, born, last, dies = unpack('<I2I8I8I8', state)
  if kind ~= 0x4201 then return redis.error_reply(foreign) end
end
local now = clock > last and clock or last
-- Where the next limit begins.
local after = 27

if verb == 'refund' then
  if size == 0 or ARGV[2] ~= string.format('%.0f', born) then return 0 end
  local parts = {sub(state, 1, 26)}
  for i = 1, (#ARGV - 2) / 2 do
    local mark, amount = tonumber(ARGV[2 * i + 1]), tonumber(ARGV[2 * i + 2])
    if after > size then break end
    local used, count, from = unpack('<I4I2', state, after)
    local upto = from + 12 * count
    after = upto
    local list = sub(state, from, upto - 1)
    for at = upto - 12, from, -12 do
      local part, units = unpack('<I8I4', state, at)
      if part == mark then
        local back = math.min(units, amount)
        used = used - back
        local left = back < units and pack('<I8I4', part, units - back) or ''
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

local pers, uses, counts, froms, uptos, olds = {}, {}, {}, {}, {}, {}
local which, ready = 0, 0
for i = 1, limits do
  local quota, per = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local used, count, from, oldest = 0, 0, after, now
  if after <= size then used, count, from = unpack('<I4I2', state, after) end
  after = from + 12 * count
  while count > 0 do
    local part, units = unpack('<I8I4', state, from)
    if part + per > now then
      oldest = part
      break
    end
    used, count, from = used - units, count - 1, from + 12
  end
  local excess, at = used + cost - quota, from
  while excess > 0 do
    local part, units = unpack('<I8I4', state, at)
    excess, at = excess - units, at + 12
    if excess <= 0 and part + per > ready then which, ready = i, part + per end
  end
  pers[i], uses[i], counts[i], froms[i], uptos[i], olds[i] = per, used, count, from, after, oldest
end

local charged = which == 0 and verb == 'check'
local reply, all, mark = pack('<I8I8', which, which == 0 and born or ready - clock), '', 0
for i = 1, limits do
  local quota, per = tonumber(ARGV[3 * i]), pers[i]
  local used, count, from, upto = uses[i], counts[i], froms[i], uptos[i]
  if charged then
    local units = cost
    -- A part begins so that what is charged first leaves after the window, and not a part later.
    mark = now
    if count > 0 then
      local newest, in_it = unpack('<I8I4', state, upto - 12)
      if newest >= now then
        mark, units, upto, count = newest, units + in_it, upto - 12, count - 1
      else
        local step = tonumber(ARGV[3 * i + 2])
        mark = newest + math.ceil((now - newest) / step) * step
      end
    end
    used, count = used + cost, count + 1
    local list = sub(state, from, upto - 1)
    all = all .. pack('<I4I2', used, count) .. list .. pack('<I8I4', mark, units)
    if mark + per > dies then dies = mark + per end
  end
  local more = -1
  if used > quota then
    -- A plan of a smaller quota finds more in use than it has.
    local excess, at = used + 1 - quota, from
    repeat
      local part, units = unpack('<I8I4', state, at)
      more, excess, at = part + per - clock, excess - units, at + 12
    until excess <= 0
  elseif used > 0 then
    more = olds[i] + per - clock
  end
  reply = reply .. pack('<I8I8i8', mark, used < quota and quota - used or 0, more)
end

if charged then
  -- What limits beyond these have in use stays.
  if after <= size then all = all .. sub(state, after) end
  local head = pack('<I2I8I8I8', kind, born, now, dies)
  call('SET', key, head .. all, 'PXAT', math.ceil(dies / 1000))
end
return reply
