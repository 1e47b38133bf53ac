//! How much there may be and how much there is: entries, or what a weigher says they weigh.
//!
//! Whoever adds to what is used owes as much as it added beyond the limit, and no more: so several who add at once
//! together owe just what is too much.

use std::sync::Arc;

use crate::engine::{
    clock::{Deadline, Now, Tick},
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

/// What an entry weighs.
pub(crate) type Weigher<K, V> = Arc<dyn Fn(&K, &V) -> u32 + Send + Sync>;

pub(super) struct Bound<K, V> {
    limit: AtomicU64,
    weigher: Option<Weigher<K, V>>,
    /// Whether entries leave for new ones. Else new ones are refused.
    pub(super) evicts: bool,
    /// No deadline in any shard is sooner: as [`Deadline::order`].
    pub(super) earliest_expiry: AtomicU64,
    /// The shard where who needs room elsewhere begins to look.
    next_shard: AtomicUsize,
    used: Used,
}

/// On a line of its own: all writers write it until there is no more room.
#[repr(align(128))]
struct Used(AtomicU64);

impl<K, V> Bound<K, V> {
    pub(super) fn new(limit: u64, weigher: Option<Weigher<K, V>>, evicts: bool) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            weigher,
            evicts,
            earliest_expiry: AtomicU64::new(u64::MAX),
            next_shard: AtomicUsize::new(0),
            used: Used(AtomicU64::new(0)),
        }
    }

    #[inline]
    pub(super) fn weigh(&self, key: &K, value: &V) -> u32 {
        self.weigher.as_ref().map_or(1, |weigher| weigher(key, value))
    }

    pub(super) fn has_weigher(&self) -> bool {
        self.weigher.is_some()
    }

    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, SeqCst);
    }

    #[inline]
    pub(super) fn used(&self) -> u64 {
        self.used.0.load(Relaxed)
    }

    /// How much there would be too much, of so much more.
    #[inline]
    pub(super) fn excess_of(&self, weight: u64) -> u64 {
        self.used().saturating_add(weight).saturating_sub(self.limit()).min(weight)
    }

    /// Whether anything may be dead in any shard.
    #[inline]
    pub(super) fn may_have_expired(&self, now: &impl Now) -> bool {
        is_due(self.earliest_expiry.load(Relaxed), now)
    }

    /// Something dies at `deadline`.
    #[inline]
    pub(super) fn note_deadline(&self, deadline: Deadline) {
        if deadline.order() < self.earliest_expiry.load(Relaxed) {
            self.earliest_expiry.fetch_min(deadline.order(), SeqCst);
        }
    }

    /// How much there is too much.
    pub(super) fn excess(&self) -> u64 {
        self.used().saturating_sub(self.limit())
    }

    /// So much has come, for so much that left. Tells how much of it is too much.
    #[inline]
    pub(super) fn adjust(&self, added: u64, removed: u64) -> u64 {
        if added <= removed {
            self.release(removed - added);
            return 0;
        }
        let more = added - removed;
        let used = self.used.0.fetch_add(more, SeqCst) + more;
        used.saturating_sub(self.limit()).min(more)
    }

    /// Takes one more, unless there would be too many.
    pub(super) fn try_reserve_one(&self) -> bool {
        let below = |used| (used < self.limit()).then_some(used + 1);
        self.used.0.fetch_update(Relaxed, Relaxed, below).is_ok()
    }

    #[inline]
    pub(super) fn release(&self, weight: u64) {
        if weight > 0 {
            self.used.0.fetch_sub(weight, SeqCst);
        }
    }

    pub(super) fn next_shard(&self, shards: usize) -> usize {
        self.next_shard.fetch_add(1, Relaxed) % shards
    }
}

/// Whether a time has come that is given as [`Deadline::order`]. What dies while a call goes on makes room for the next.
#[inline]
pub(super) fn is_due(order: u64, now: &impl Now) -> bool {
    order != u64::MAX && now.had_reached(Tick::from_nanoseconds(order))
}
