-- Removes all entries of keys of one shard. Values of another type stay, since another program wrote them. For `clear`
-- and `remove_many`.
--
-- KEYS      as in prelude.lua, of each key
-- ARGV[2]   and the following: the keys
-- Returns the number of live values that were removed.

local removed = 0
for at = 2, #ARGV do
    local record, shadow, load = KEYS[3 * at - 5], KEYS[3 * at - 4], KEYS[3 * at - 3]
    local kind = redis.call('TYPE', record).ok
    if kind == 'string' then
        local is_live = redis.call('GETRANGE', record, 0, 3) ~= TAGGED or live(redis.call('GET', record), record)
        -- First: a full server refuses to add an event, unless the script has already changed something.
        redis.call('UNLINK', load)
        local _, had_expired = expire_if_due(ARGV[at], shadow)
        redis.call('UNLINK', record)
        unindex(ARGV[at], shadow)
        if is_live and not had_expired then removed = removed + 1 end
    elseif kind == 'none' then
        redis.call('UNLINK', load)
        expire_if_due(ARGV[at], shadow)
    end
end
return removed
