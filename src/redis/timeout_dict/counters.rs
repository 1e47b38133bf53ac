//! Numbers of what this process did with a dictionary, for its metrics.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

// `Relaxed` everywhere: counters order no other memory.
#[derive(Debug, Default)]
pub(super) struct DictCounters {
    taken: AtomicU64,
    claims: AtomicU64,
    acked: AtomicU64,
    failed: AtomicU64,
    /// Claims that have not ended.
    held: AtomicU64,
}

/// A claim that has not ended.
pub(super) struct HeldClaim(Arc<DictCounters>);

impl DictCounters {
    pub(super) fn taken(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// Counts a claim, which is held until the result is dropped.
    pub(super) fn claimed(self: &Arc<Self>) -> HeldClaim {
        self.claims.fetch_add(1, Relaxed);
        self.held.fetch_add(1, Relaxed);
        HeldClaim(self.clone())
    }

    pub(super) fn acked(&self) {
        self.acked.fetch_add(1, Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// Returns the numbers of entries taken, claims, acks and failed claims.
    #[cfg(feature = "metrics")]
    pub(super) fn totals(&self) -> [u64; 4] {
        [&self.taken, &self.claims, &self.acked, &self.failed].map(|count| count.load(Relaxed))
    }

    /// Returns the number of claims that have not ended.
    #[cfg(feature = "metrics")]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Relaxed);
    }
}
