//! `Permit::refund` and `settle`, and the registry by which a permit finds its limiter. `debt` corrects the charge.

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
    /// Takes back what was charged for this permit, for all limits. Use it if your call did not count after all.
    ///
    /// The key is then as if the call was never made, even if other limits were checked or set in between. Charges that
    /// have left the window, or that were [`reset`](super::RateLimiter::reset), are not taken back.
    /// [`Window::Gcra`](super::Window::Gcra) may take back less, as documented there. If [the limits
    /// changed](super::RateLimiter::set_limits) more than 64 times in between, only [`Window::Log`](super::Window::Log)
    /// takes anything back. If the key had no entry because
    /// of [`max_keys`](super::RateLimiterBuilder::max_keys), its charge is taken back from the shared quota, but stays
    /// in its own record. Does nothing if the limiter no longer exists.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it completes has taken nothing back.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let logins = RateLimiter::<String>::builder().limit(Limit::per_hour(5)).build();
    ///
    /// let permit = logins.check("ada").await.unwrap();
    /// // The password was right: only failures count.
    /// permit.refund().await;
    /// assert_eq!(logins.peek("ada").await.remaining(), 5);
    /// # }
    /// ```
    pub async fn refund(self) {
        coop::proceed().await;
        self.refund_now();
    }

    /// Sets the actual cost of the call when you know it, for example the number of tokens, bytes or rows.
    ///
    /// If the call cost more than was charged, the difference is charged now. If it cost less, the difference is
    /// refunded as by [`refund`](Permit::refund).
    ///
    /// The additional charge is made even if it exceeds the quota; the excess is a debt. A debt counts as one charge of
    /// its size: the key is denied until the whole debt leaves the window, after `per`
    /// ([`Window::Gcra`](super::Window::Gcra) leaks it evenly, like every charge). A debt is charged even if the key
    /// has become idle in the meantime. Only a later [`reset`](super::RateLimiter::reset), or dropping the limiter,
    /// clears it earlier.
    ///
    /// The limits are those of the check; if it used the limiter's own, the current ones apply.
    ///
    /// A check of cost 0 always passes, even if the key has a debt. To deny calls while a debt lasts, check with the
    /// minimum cost of your calls, and settle later.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it completes has changed nothing, and the permit stays charged.
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
        if !self.charges.is_none()
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
        // The registry's lock is released before the returned handle is dropped. That handle may be the last one, and
        // dropping the limiter takes the lock to unregister it.
        limiters.get(&self.origin.limiter()).and_then(Weak::upgrade)
    }
}

/// Limiter of any key type and algorithm: a permit has neither as a type parameter.
pub(super) trait Settle: Send + Sync {
    fn refund(&self, permit: &Permit);
    fn settle(&self, permit: &Permit, actual: u32);
}

/// All limiters of the process, by number. A permit stores the number: counting a reference to the limiter would cost
/// each check as much as everything else in it, while few permits are corrected.
static LIMITERS: RwLock<BTreeMap<u64, Weak<dyn Settle>>> = RwLock::new(BTreeMap::new());

/// Entry of a limiter in [`LIMITERS`], removed on drop. Numbers are never reused, so a permit that outlives its limiter
/// finds none.
pub(super) struct LimiterEntry(u64);

impl LimiterEntry {
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

impl Drop for LimiterEntry {
    fn drop(&mut self) {
        LIMITERS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
