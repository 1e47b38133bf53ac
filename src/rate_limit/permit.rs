//! `Permit`, the result of a check that passed. The methods that correct its charge are in `settle.rs`.

use std::num::NonZeroU64;

use super::{
    Limit, Window,
    algorithm::LimitParams,
    charges::Charges,
    limit_set::{MAX_NUMBER, params_of},
    per_limit::PerLimit,
};

/// Permission for a call that was charged to a key. Keep it to correct the charge later:
///
/// ```
/// # use fleeting::{Limit, RateLimiter};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let traffic: RateLimiter<String> = RateLimiter::new(Limit::per_minute(10_000).of_bytes());
/// let permit = traffic.check_n("ada", 1_000).await.unwrap(); // an estimate
/// permit.settle(640).await;                                  // the size of the answer
/// assert_eq!(traffic.peek("ada").await.remaining(), 9_360);
/// # }
/// ```
///
/// Dropping it changes nothing: the call stays charged.
#[derive(Debug)]
pub struct Permit {
    pub(super) origin: Origin,
    /// Hash of the key. The key itself would have to be cloned; hash and state number identify its entry.
    pub(super) hash: u64,
    /// Number of the state that was charged; `None` for the state that keys beyond the bound share.
    pub(super) state: Option<NonZeroU64>,
    pub(super) charges: Charges,
    /// The limits of the check, if it had others than the limiter's own.
    pub(super) params: Option<Box<PerLimit<LimitParams>>>,
    pub(super) remaining: u32,
    pub(super) cost: u32,
}

/// Limiter of a permit, and which of its own limits applied. In one word, since each check returns it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(u64);

impl Origin {
    const BITS: u32 = (MAX_NUMBER + 1).ilog2();

    /// `limiter` is its number in the registry of `settle.rs`, `limits` that of its limits.
    #[inline]
    pub(super) fn new(limiter: u64, limits: u32) -> Self {
        Self(limiter << Self::BITS | u64::from(limits))
    }

    pub(super) fn limiter(self) -> u64 {
        self.0 >> Self::BITS
    }

    pub(super) fn limits(self) -> u32 {
        self.0 as u32 & MAX_NUMBER
    }
}

impl Permit {
    /// Returns how many more units would have passed at the time of the check: the smallest number that any of the
    /// limits had left.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(100));
    /// let permit = limiter.check_n("ada", 95).await.unwrap();
    /// if permit.remaining() < 10 {
    ///     println!("only {} calls are left", permit.remaining());
    /// }
    /// # assert_eq!(permit.remaining(), 5);
    /// # }
    /// ```
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
