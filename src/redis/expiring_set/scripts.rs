//! Scripts of an expiring set, one per method. Each begins with the layout of the scores and with `prelude.lua`, which
//! removes expired members.

use super::scores::ScoreUnit;
use crate::redis::script::Script;

/// Maximum number of members that a script removes, because the server executes nothing else in the meantime. Also
/// `MAX_REMOVED` of `prelude.lua`.
pub(super) const MAX_REMOVED: usize = 1_000;

/// Scripts for one layout. `KEYS` and `ARGV[1]` are described in `prelude.lua`.
pub(super) struct SetScripts {
    /// `ARGV`: a score, `1` to replace all members with that score, and the members.
    pub(super) push: Script,
    /// `ARGV`: the bounds of a range of scores, and the maximum number of members, -1 for all.
    pub(super) range: Script,
    /// Returns the member with the lowest score and the score; nothing if the set is empty.
    pub(super) pop: Script,
    /// `ARGV`: a member and its score.
    pub(super) put_back: Script,
    /// `ARGV`: a member. Returns whether it was in the set.
    pub(super) remove: Script,
    /// `ARGV`: the bounds of a range of scores. Returns the number of removed members, up to [`MAX_REMOVED`].
    pub(super) remove_range: Script,
    pub(super) clear: Script,
    /// `ARGV`: a member.
    pub(super) score: Script,
    pub(super) len: Script,
}

pub(super) fn scripts(unit: ScoreUnit) -> &'static SetScripts {
    static MILLIS: SetScripts = SetScripts::new(include_str!("millis.lua"));
    static SECONDS: SetScripts = SetScripts::new(include_str!("seconds.lua"));
    match unit {
        ScoreUnit::Millis => &MILLIS,
        ScoreUnit::Seconds => &SECONDS,
    }
}

impl SetScripts {
    const fn new(layout: &'static str) -> Self {
        let prelude = include_str!("prelude.lua");
        Self {
            push: Script::new([layout, prelude, include_str!("push.lua")]),
            range: Script::new([
                layout,
                prelude,
                "return redis.call('ZRANGEBYSCORE', key, clamp_start(ARGV[2]), ARGV[3], 'LIMIT', 0, ARGV[4])",
            ]),
            pop: Script::new([layout, prelude, include_str!("pop.lua")]),
            put_back: Script::new([layout, prelude, include_str!("put_back.lua")]),
            remove: Script::new([
                layout,
                prelude,
                "local was_live = is_live(redis.call('ZSCORE', key, ARGV[2]))
                return redis.call('ZREM', key, ARGV[2]) == 1 and was_live and 1 or 0",
            ]),
            remove_range: Script::new([layout, prelude, include_str!("remove_range.lua")]),
            clear: Script::new([layout, prelude, "return redis.call('UNLINK', key)"]),
            score: Script::new([
                layout,
                prelude,
                "local score = redis.call('ZSCORE', key, ARGV[2])
                return is_live(score) and score",
            ]),
            len: Script::new([
                layout,
                prelude,
                "return redis.call('ZCOUNT', key, live_from, '+inf')",
            ]),
        }
    }
}
