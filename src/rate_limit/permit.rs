//! The leave that a check gives. What takes its charge back is in `refund.rs`.

use std::num::NonZeroU64;

use super::{algorithm::Charge, per_limit::PerLimit};

/// Leave to go on, charged to a key. Dropping it changes nothing: it was used.
#[derive(Debug)]
pub struct Permit {
    /// Its number among those that `refund.rs` knows.
    pub(super) limiter: u64,
    /// Of the key, which would have to be cloned: with the state's number it finds the entry.
    pub(super) hash: u64,
    /// The state that was charged; `None` where it is the one that keys beyond the bound share.
    pub(super) state: Option<NonZeroU64>,
    pub(super) charges: PerLimit<Charge>,
    pub(super) remaining: u32,
}

impl Permit {
    /// How many units of one call more would pass now: the least that any limit has left.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }
}
