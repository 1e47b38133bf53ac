//! The scripts of a dictionary, one a verb. Each begins with its layout, which says how records and scores are
//! written, and `prelude.lua`, which says what a claim is. `KEYS` and `ARGV[1]` are the same for all: see
//! there.

use crate::redis::script::Script;

pub(super) struct Scripts {
    pub(super) set: Script,
    pub(super) set_timeout: Script,
    pub(super) ttl: Script,
    pub(super) remove: Script,
    pub(super) peek_due: Script,
    pub(super) take: Script,
    pub(super) put_back: Script,
    pub(super) claim: Script,
    pub(super) ack: Script,
    pub(super) extend: Script,
    pub(super) give_back: Script,
    pub(super) clear: Script,
}

pub(super) static SHARDED: Scripts = Scripts::new(include_str!("sharded.lua"));
pub(super) static COMPAT: Scripts = Scripts::new(include_str!("compat.lua"));

impl Scripts {
    const fn new(layout: &'static str) -> Self {
        let prelude = include_str!("prelude.lua");
        Self {
            set: Script::new([layout, prelude, include_str!("set.lua")]),
            set_timeout: Script::new([layout, prelude, include_str!("set_timeout.lua")]),
            ttl: Script::new([layout, prelude, include_str!("ttl.lua")]),
            remove: Script::new([layout, prelude, include_str!("remove.lua")]),
            peek_due: Script::new([layout, prelude, include_str!("peek_due.lua")]),
            take: Script::new([layout, prelude, include_str!("take.lua")]),
            put_back: Script::new([layout, prelude, include_str!("put_back.lua")]),
            claim: Script::new([layout, prelude, include_str!("claim.lua")]),
            ack: Script::new([layout, prelude, include_str!("ack.lua")]),
            extend: Script::new([layout, prelude, include_str!("extend.lua")]),
            give_back: Script::new([layout, prelude, include_str!("give_back.lua")]),
            clear: Script::new([layout, prelude, include_str!("clear.lua")]),
        }
    }
}
