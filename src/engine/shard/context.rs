//! Data outside a shard that the operations of a shard need, shared by all shards of a store.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::tags::TagRemovals;
use crate::engine::{
    bound::limit::{Bound, is_due},
    clock::{Deadline, Now},
    counters::DepartureCounters,
    event::journal::Journal,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

/// Data that all shards of a store share. Owned by the store itself, so that reaching it takes no further pointer.
pub(crate) struct ShardContext<K, V, S> {
    pub(crate) hasher: S,
    /// Data of each shard that is read without its lock.
    pub(crate) meta: Box<[ShardMeta]>,
    pub(crate) journal: Arc<Journal<K, V>>,
    pub(crate) bound: Option<Box<Bound<K, V>>>,
    pub(crate) tag_removals: TagRemovals,
    /// [`Deadline::order`] of the time at which a sleeping sweeper wakes by itself; zero if no sweeper sleeps.
    pub(crate) wake_deadline: AtomicU64,
    /// Number of keys whose `Hash` panicked while a table grew or shrank, since the last report.
    unhashed: AtomicUsize,
}

/// Atomics of one shard that are written under its lock and read without it. Aligned so that no two
/// shards share a cache line.
#[repr(align(128))]
pub(crate) struct ShardMeta {
    /// [`Deadline::order`] of the earliest expiry: no entry of the shard expires before it. Zero while a table is being
    /// shrunk.
    pub(crate) earliest_expiry: AtomicU64,
    pub(crate) departures: DepartureCounters,
    /// Recent maximum of the number of entries, for `Store::shrink`. Fades by an eighth at each of its
    /// calls.
    pub(crate) peak: AtomicUsize,
}

impl<K, V, S> ShardContext<K, V, S> {
    pub(crate) fn new(shards: usize, hasher: S) -> Self {
        Self {
            hasher,
            meta: (0..shards).map(|_| ShardMeta::new()).collect(),
            journal: Arc::new(Journal::new()),
            bound: None,
            tag_removals: TagRemovals::new(),
            wake_deadline: AtomicU64::new(0),
            unhashed: AtomicUsize::new(0),
        }
    }

    /// Returns the bound if this store evicts entries to stay within it.
    #[inline]
    pub(crate) fn evicting_bound(&self) -> Option<&Bound<K, V>> {
        self.bound.as_deref().filter(|bound| bound.evicts)
    }

    /// Returns whether an entry of this shard may have expired.
    #[inline]
    pub(crate) fn is_due(&self, shard: usize, now: &impl Now) -> bool {
        is_due(self.meta[shard].earliest_expiry.load(Relaxed), now)
    }

    /// Returns the hash of a key that is already in the store, or 0 if `Hash` panics. A panic while a table is rehashed
    /// would lose the other entries. With a wrong hash only this key is lost: no look-up finds it, and a sweep removes
    /// it after its deadline.
    pub(crate) fn hash_or_zero(&self, key: &K) -> u64
    where
        K: Hash,
        S: BuildHasher,
    {
        catch_unwind(AssertUnwindSafe(|| self.hasher.hash_one(key))).unwrap_or_else(|_| {
            self.unhashed.fetch_add(1, Relaxed);
            0
        })
    }

    /// Returns and resets the number of keys whose `Hash` panicked.
    pub(crate) fn take_unhashed(&self) -> usize {
        // A load first: the sweeper calls this at every tick, and a swap would take the line exclusively each time.
        match self.unhashed.load(Relaxed) {
            0 => 0,
            _ => self.unhashed.swap(0, Relaxed),
        }
    }

    /// Stores the earliest expiry of a locked shard, and wakes the sweeper if it sleeps for longer.
    #[cold]
    pub(crate) fn note_earliest_expiry(&self, shard: usize, earliest: Deadline) {
        self.meta[shard].earliest_expiry.store(earliest.order(), Relaxed);
        // Store buffering, with the fence in `arm_wake_deadline`: the writer stores the expiry and then reads the wake
        // deadline; the sweeper stores the wake deadline and then reads the expiry. With both fences, at least one of
        // the two sees the other's store, so no expiry is overslept.
        fence(SeqCst);
        if earliest.order() < self.wake_deadline.load(Relaxed) {
            self.journal.request_wake();
        }
    }
}

impl ShardMeta {
    fn new() -> Self {
        Self {
            earliest_expiry: AtomicU64::new(Deadline::PERSISTENT.order()),
            departures: DepartureCounters::default(),
            peak: AtomicUsize::new(0),
        }
    }
}
