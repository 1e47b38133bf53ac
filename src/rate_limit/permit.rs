//! `Permit`, the result of a check that passed. The methods that correct its charge are in `settle.rs`.

use std::num::NonZeroU64;

use super::{
    Limit, Window,
    algorithm::{Charge, LimitParams},
    limit_set::params_of,
    per_limit::PerLimit,
};

/// Permission for a call that was charged to a key. Dropping it changes nothing: the call stays charged.
#[derive(Debug)]
pub struct Permit {
    /// Number of the limiter in the registry of `settle.rs`.
    pub(super) limiter: u64,
    /// Hash of the key. The key itself would have to be cloned; hash and state number identify its entry.
    pub(super) hash: u64,
    /// Number of the state that was charged; `None` for the state that keys beyond the bound share.
    pub(super) state: Option<NonZeroU64>,
    /// Charge of each limit; empty if the call cost nothing.
    pub(super) charges: PerLimit<Charge>,
    /// The limits of the check, if it had others than the limiter's own.
    pub(super) params: Option<Box<PerLimit<LimitParams>>>,
    pub(super) remaining: u32,
    pub(super) cost: u32,
}

impl Permit {
    /// Returns how many more units would have passed at the time of the check: the smallest number that any of the
    /// limits had left.
    ///
    /// After a call of cost 0, this is the remaining quota, as of [`peek`](super::RateLimiter::peek). `u32::MAX` if
    /// there were no limits.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns the permit of a check that had these limits in place of the limiter's own, if there are any.
    pub(super) fn with_override(self, limits: Option<&[Limit]>, window: Window) -> Self {
        let params = limits.map(|limits| Box::new(params_of(limits, window)));
        Self { params, ..self }
    }
}
