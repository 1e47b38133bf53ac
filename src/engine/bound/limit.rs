//! The limit of a store, the number or weight of entries in use, and which weight is too heavy for the limit.
//!
//! A writer must evict as much as its own write exceeded the limit by, and no more. The sum over concurrent writers is
//! then exactly the excess, so together they neither leave the store above its bound nor evict too much.

use std::sync::Arc;

use super::deferred::Deferred;
use crate::engine::{
    clock::{Deadline, Now, Tick},
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

/// Returns the weight of an entry.
pub(crate) type Weigher<K, V> = Arc<dyn Fn(&K, &V) -> u32 + Send + Sync>;

/// The limit, and the weight in use, of all shards.
pub(crate) struct Bound<K, V> {
    limit: AtomicU64,
    weigher: Option<Weigher<K, V>>,
    /// True if entries are evicted for new ones; false if new keys are refused.
    pub(crate) evicts: bool,
    /// [`Deadline::order`] of a time before which no entry in any shard expires; `u64::MAX` if none expires. See
    /// `MakeRoom::expire_to_fit` for how it is raised.
    pub(crate) earliest_expiry: AtomicU64,
    pub(super) deferred: Deferred,
    /// The shard at which the next eviction outside of the written shard begins. Rotates, so that all shards are
    /// evicted from equally.
    next_shard: AtomicUsize,
    used: Used,
}

/// The weight in use. On cache lines of its own: every insert writes it, and the fields above are read by all writers.
#[repr(align(128))]
struct Used(AtomicU64);

impl<K, V> Bound<K, V> {
    pub(crate) fn new(limit: u64, weigher: Option<Weigher<K, V>>, evicts: bool) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            weigher,
            evicts,
            earliest_expiry: AtomicU64::new(u64::MAX),
            deferred: Deferred::new(),
            next_shard: AtomicUsize::new(0),
            used: Used(AtomicU64::new(0)),
        }
    }

    /// Returns the weight of an entry: 1 without a weigher. Calls user code.
    #[inline]
    pub(crate) fn weigh(&self, key: &K, value: &V) -> u32 {
        self.weigher.as_ref().map_or(1, |weigher| weigher(key, value))
    }

    pub(crate) fn has_weigher(&self) -> bool {
        self.weigher.is_some()
    }

    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Returns whether an entry of this weight exceeds the limit by itself. It is discarded.
    #[inline]
    pub(crate) fn is_too_heavy(&self, weight: u32) -> bool {
        u64::from(weight) > self.limit()
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        // SeqCst, as are the addition and the load in `adjust`, and the loads in `excess`: a writer adds weight and
        // then reads the limit, and this caller lowers the limit and then reads the weight. One of the two must see the
        // other's change and evict.
        self.limit.store(limit, SeqCst);
    }

    /// Returns the weight in use.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used.0.load(Relaxed)
    }

    /// Returns by how much the limit would be exceeded with `weight` more.
    #[inline]
    pub(crate) fn excess_with(&self, weight: u64) -> u64 {
        self.used().saturating_add(weight).saturating_sub(self.limit())
    }

    /// Returns by how much `weight` more would exceed the limit, at most `weight`.
    #[inline]
    pub(crate) fn excess_of(&self, weight: u64) -> u64 {
        self.excess_with(weight).min(weight)
    }

    /// Returns whether any entry of any shard may have expired.
    #[inline]
    pub(crate) fn may_have_expired(&self, now: &impl Now) -> bool {
        is_due(self.earliest_expiry.load(Relaxed), now)
    }

    /// Records that an entry expires at `deadline`.
    #[inline]
    pub(crate) fn note_deadline(&self, deadline: Deadline) {
        // A load first: most deadlines are later, and all writers share the line. SeqCst: see
        // `MakeRoom::expire_to_fit`.
        if deadline.order() < self.earliest_expiry.load(Relaxed) {
            self.earliest_expiry.fetch_min(deadline.order(), SeqCst);
        }
    }

    /// Returns by how much the weight in use exceeds the limit.
    pub(crate) fn excess(&self) -> u64 {
        // SeqCst: see `set_limit`.
        self.used.0.load(SeqCst).saturating_sub(self.limit.load(SeqCst))
    }

    /// Replaces the weight `removed` by `added`. Returns how much of the increase is above the limit, which the caller
    /// must evict.
    #[inline]
    pub(crate) fn adjust(&self, added: u64, removed: u64) -> u64 {
        if added <= removed {
            self.release(removed - added);
            return 0;
        }
        let more = added - removed;
        // SeqCst: see `set_limit`.
        let used = self.used.0.fetch_add(more, SeqCst) + more;
        used.saturating_sub(self.limit.load(SeqCst)).min(more)
    }

    /// Adds one entry unless the limit has been reached. Returns whether it was added.
    pub(crate) fn try_reserve_one(&self) -> bool {
        // Relaxed: this bound is never changed, and no other memory depends on the count.
        let below = |used| (used < self.limit()).then_some(used + 1);
        self.used.0.fetch_update(Relaxed, Relaxed, below).is_ok()
    }

    /// Subtracts the weight of removed entries.
    #[inline]
    pub(crate) fn release(&self, weight: u64) {
        // SeqCst as in `adjust`, for one order of all changes.
        if weight > 0 {
            self.used.0.fetch_sub(weight, SeqCst);
        }
    }

    /// Returns the shard at which the next eviction begins.
    pub(crate) fn next_shard(&self, shards: usize) -> usize {
        self.next_shard.fetch_add(1, Relaxed) % shards
    }
}

/// Returns whether the time given as [`Deadline::order`] has been reached, judged by the start of the call if `now`
/// knows it: entries that expire during a call are removed by the next.
#[inline]
pub(crate) fn is_due(order: u64, now: &impl Now) -> bool {
    order != u64::MAX && now.had_reached(Tick::from_nanoseconds(order))
}
