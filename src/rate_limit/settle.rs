//! How a permit finds the limiter that it was charged by, to have its charge corrected.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::Permit;
use crate::engine::coop;

impl Permit {
    /// Takes back exactly what was charged for this permit, of all limits; nothing of what has left the
    /// window meanwhile, or was [`reset`](super::RateLimiter::reset), or where the limiter is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end took nothing back.
    pub async fn refund(self) {
        coop::proceed().await;
        self.refund_now();
    }

    /// Says what the call has cost, now that it is known: tokens of a model, bytes, rows. The difference to
    /// what was charged is charged now or, where it cost less, given back as by [`refund`](Permit::refund).
    ///
    /// What is charged now is charged whether there is room or not. Beyond the quota it is a debt: until it
    /// has left its window, as one charge of that size, whole, after `per`, the key is denied (by
    /// [`Window::Gcra`](super::Window::Gcra) it leaks, as all does). It is never lost, also where nothing of
    /// the key was in use any more when the call ended: only with the limiter, or by a later
    /// [`reset`](super::RateLimiter::reset). The limits are those of the check or, where it had none of its own, those
    /// that the limiter has by then.
    ///
    /// Who asks for a cost of 0 and settles later is let in whatever is in use; who asks for the least that
    /// a call may cost is not let in while there is a debt.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end changed nothing, and the permit stays charged.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let tokens = RateLimiter::<String>::builder().limit(Limit::per_minute(1_000)).build();
    ///
    /// // An estimate, before the model is asked.
    /// let permit = tokens.check_n("ada", 200).await.unwrap();
    /// permit.settle(350).await;
    /// assert_eq!(tokens.peek("ada").await.remaining(), 650);
    ///
    /// let permit = tokens.check_n("ada", 200).await.unwrap();
    /// permit.settle(5_000).await;
    /// let limited = tokens.check("ada").await.unwrap_err();
    /// assert_eq!(limited.retry_after().as_secs(), 60);
    /// # }
    /// ```
    pub async fn settle(self, actual: u32) {
        coop::proceed().await;
        self.settle_now(actual);
    }

    pub(crate) fn refund_now(self) {
        // A cost of 0 charged nothing.
        if !self.charges.is_empty()
            && let Some(limiter) = self.limiter()
        {
            limiter.refund(&self);
        }
    }

    pub(crate) fn settle_now(self, actual: u32) {
        if actual != self.cost
            && let Some(limiter) = self.limiter()
        {
            limiter.settle(&self, actual);
        }
    }

    fn limiter(&self) -> Option<Arc<dyn Settle>> {
        let limiters = LIMITERS.read().unwrap_or_else(PoisonError::into_inner);
        // The lock is free again when this is dropped, which may be the last handle: the limiter that goes with it
        // asks for the lock to leave.
        limiters.get(&self.limiter).and_then(Weak::upgrade)
    }
}

/// A limiter, whatever its keys and its way to count: a permit knows neither.
pub(super) trait Settle: Send + Sync {
    fn refund(&self, permit: &Permit);
    fn settle(&self, permit: &Permit, actual: u32);
}

/// The limiters there are. A permit names its limiter by number: to count references would cost each
/// check as much as all the rest, for the sake of the few permits that are given back.
static LIMITERS: RwLock<BTreeMap<u64, Weak<dyn Settle>>> = RwLock::new(BTreeMap::new());

/// A limiter's place among [`LIMITERS`], as long as this lives. Numbers are never given twice: a permit that
/// outlives its limiter finds none.
pub(super) struct Registration(u64);

impl Registration {
    pub(super) fn new(limiter: Weak<dyn Settle>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Relaxed);
        LIMITERS.write().unwrap_or_else(PoisonError::into_inner).insert(id, limiter);
        Self(id)
    }

    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        LIMITERS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
