-- Score layout of sets that are shared with other programs (`compat`); millis.lua is the other. Changes nothing by
-- itself; prelude.lua follows.
--
-- A score is seconds since the Unix epoch, as in the original programs. Doubles near the current time differ by a
-- quarter of a microsecond, so members are spaced by a microsecond.

local UNIT, PARTS = 1000000, 1000000
-- Defined by prelude.lua.
local text, key

local function first_of(score)
  return text(score)
end

-- Equal scores are one time in this layout.
local last_of = first_of

local function next_score(score)
  return score
end

-- No expiry: it would also delete the members of programs that set none.
local function expire_key_at() end
