//! Scripts of a dictionary, one per operation. Each begins with its layout, which defines the encoding of records and
//! scores, and with `prelude.lua`, which defines claims and describes `KEYS` and `ARGV[1]`.

use crate::redis::script::Script;

pub(super) struct Scripts {
    pub(super) set: Script,
    pub(super) set_nx: Script,
    pub(super) set_timeout: Script,
    pub(super) ttl: Script,
    pub(super) remove: Script,
    pub(super) peek_due: Script,
    pub(super) lease: Script,
    pub(super) confirm: Script,
    pub(super) put_back: Script,
    pub(super) ack: Script,
    pub(super) fail: Script,
    pub(super) extend: Script,
    pub(super) give_back: Script,
    pub(super) revive: Script,
    /// Counts the dead letters.
    pub(super) dead_len: Script,
    /// Reads the dead letters. Only for `SHARDED`.
    pub(super) dead_letters: Script,
    pub(super) clear: Script,
    /// Counts the entries by their states, for the metrics.
    #[cfg(feature = "metrics")]
    pub(super) measure: Script,
}

pub(super) static SHARDED: Scripts = Scripts::new(include_str!("sharded.lua"));
pub(super) static COMPAT: Scripts = Scripts::new(include_str!("compat.lua"));

impl Scripts {
    const fn new(layout: &'static str) -> Self {
        let prelude = include_str!("prelude.lua");
        Self {
            set: Script::new([layout, prelude, include_str!("set.lua")]),
            set_nx: Script::new([layout, prelude, include_str!("set_nx.lua")]),
            set_timeout: Script::new([layout, prelude, include_str!("set_timeout.lua")]),
            ttl: Script::new([layout, prelude, include_str!("ttl.lua")]),
            remove: Script::new([layout, prelude, include_str!("remove.lua")]),
            peek_due: Script::new([layout, prelude, include_str!("peek_due.lua")]),
            lease: Script::new([layout, prelude, include_str!("lease.lua")]),
            confirm: Script::new([layout, prelude, include_str!("confirm.lua")]),
            put_back: Script::new([layout, prelude, include_str!("put_back.lua")]),
            ack: Script::new([layout, prelude, include_str!("ack.lua")]),
            fail: Script::new([layout, prelude, include_str!("fail.lua")]),
            extend: Script::new([layout, prelude, include_str!("extend.lua")]),
            give_back: Script::new([layout, prelude, include_str!("give_back.lua")]),
            revive: Script::new([layout, prelude, include_str!("revive.lua")]),
            dead_len: Script::new([
                layout,
                prelude,
                "return redis.call('ZCOUNT', dead, '-inf', score(now))",
            ]),
            dead_letters: Script::new([layout, prelude, include_str!("dead_letters.lua")]),
            clear: Script::new([layout, prelude, include_str!("clear.lua")]),
            #[cfg(feature = "metrics")]
            measure: Script::new([layout, prelude, include_str!("measure.lua")]),
        }
    }
}
