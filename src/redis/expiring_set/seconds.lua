-- The layout of sets that other programs write too (`compat`); millis.lua is the other. Changes nothing by
-- itself; prelude.lua follows.
--
-- A score is seconds since the Unix epoch, as the original's programs write them. A microsecond is the least
-- that tells doubles of these years apart.

local UNIT, PARTS = 1000000, 1000000
-- What prelude.lua defines, and the functions here use.
local text, key

local function first_of(score)
  return text(score)
end

-- Equal scores are one time here: a range of one is all that have it.
local last_of = first_of

local function next_score(score)
  return score
end

-- Members of programs that set no expiry would go with the key.
local function expire_key_at() end
