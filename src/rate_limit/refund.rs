//! How a permit finds the limiter that it was charged by, to give its charge back.

use std::{
    collections::BTreeMap,
    sync::{
        PoisonError, RwLock, Weak,
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

    pub(crate) fn refund_now(self) {
        // A cost of 0 charged nothing.
        if self.charges.is_empty() {
            return;
        }
        let limiters = LIMITERS.read().unwrap_or_else(PoisonError::into_inner);
        let limiter = limiters.get(&self.limiter).and_then(Weak::upgrade);
        // Ours may be the last handle: the limiter that is dropped with it asks for this lock to leave.
        drop(limiters);
        if let Some(limiter) = limiter {
            limiter.refund(&self);
        }
    }
}

/// A limiter, whatever its keys and its way to count: a permit knows neither.
pub(super) trait Refund: Send + Sync {
    fn refund(&self, permit: &Permit);
}

/// The limiters there are. A permit names its limiter by number: to count references would cost each
/// check as much as all the rest, for the sake of the few permits that are given back.
static LIMITERS: RwLock<BTreeMap<u64, Weak<dyn Refund>>> = RwLock::new(BTreeMap::new());

/// A limiter's place among [`LIMITERS`], as long as this lives. Numbers are never given twice: a permit that
/// outlives its limiter finds none.
pub(super) struct Registration(u64);

impl Registration {
    pub(super) fn new(limiter: Weak<dyn Refund>) -> Self {
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
