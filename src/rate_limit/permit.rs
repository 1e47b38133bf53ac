//! The leave that a check gives. What corrects its charge is in `settle.rs`.

use std::num::NonZeroU64;

use super::{
    algorithm::{Charge, LimitParams},
    per_limit::PerLimit,
};

/// Leave to go on, charged to a key. Dropping it changes nothing: it was used.
#[derive(Debug)]
pub struct Permit {
    /// Its number among those that `settle.rs` knows.
    pub(super) limiter: u64,
    /// Of the key, which would have to be cloned: with the state's number it finds the entry.
    pub(super) hash: u64,
    /// The state that was charged; `None` where it is the one that keys beyond the bound share.
    pub(super) state: Option<NonZeroU64>,
    /// None where the call cost nothing.
    pub(super) charges: PerLimit<Charge>,
    /// Other limits than the limiter's own.
    pub(super) limit_set: Option<Box<PerLimit<LimitParams>>>,
    pub(super) remaining: u32,
    pub(super) cost: u32,
}

impl Permit {
    /// How many units of one call more would pass now: the least that any limit has left.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }
}
