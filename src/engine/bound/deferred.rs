//! Weight above the limit whose eviction was deferred, and the entries that must not be evicted for it.
//!
//! A write that exceeds the limit by very many entries evicts only a part of them and defers the rest, because eviction
//! must not keep its worker for long: `make_room` has the limits. The deferred weight is evicted part by part: by the
//! call itself, by every other write in the meantime, and by the sweeper, one at a time. So the call may be cancelled
//! at any time.

use std::sync::TryLockError;

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Weight whose eviction was deferred, and the keys whose entries it must not cost.
pub(crate) struct Deferred {
    /// Any writer adds to it, and the one whose turn it is subtracts.
    weight: AtomicU64,
    /// Hash of the key whose write was the last to defer evictions. Its entry is evicted only by later writes.
    deferred_for: AtomicU64,
    /// Hash of the key that was written last while evictions were deferred. Its write helps to evict the deferred
    /// weight, and must not evict its own entry.
    last_written: AtomicU64,
    /// Held while deferred weight is evicted. If two calls did that at a time, both might evict the same weight, and
    /// the slower one would subtract it again from the weight that another write has deferred since.
    turn: Mutex<()>,
}

/// The right to evict deferred weight.
pub(super) struct EvictionTurn<'a> {
    weight: &'a AtomicU64,
    _guard: MutexGuard<'a, ()>,
}

impl EvictionTurn<'_> {
    /// Ends the turn and subtracts evicted weight from the deferred weight, of which it is a part.
    pub(super) fn settle(self, evicted: u64) {
        // Relaxed: the turn is passed on by its lock, and writers only add.
        self.weight.fetch_sub(evicted, Relaxed);
    }
}

impl Deferred {
    pub(super) fn new() -> Self {
        Self {
            weight: AtomicU64::new(0),
            deferred_for: AtomicU64::new(0),
            last_written: AtomicU64::new(0),
            turn: Mutex::new(()),
        }
    }

    /// Defers the eviction of `weight` after a write to the key with this hash.
    pub(super) fn add(&self, weight: u64, hash: u64) {
        self.deferred_for.store(hash, Relaxed);
        self.last_written.store(hash, Relaxed);
        // Release, for `weight`: a call that knows of this weight knows that it is in use, and must not find the store
        // within its bound.
        self.weight.fetch_add(weight, Release);
    }

    /// Returns the weight whose eviction was deferred.
    #[inline]
    pub(super) fn weight(&self) -> u64 {
        self.weight.load(Acquire)
    }

    /// Records a write to the key with this hash, if evictions are deferred.
    #[inline]
    pub(super) fn note_written(&self, hash: u64) {
        if self.weight() > 0 {
            self.last_written.store(hash, Relaxed);
        }
    }

    /// Returns the hash of the key whose write was the last to defer evictions.
    pub(super) fn deferred_for(&self) -> u64 {
        self.deferred_for.load(Relaxed)
    }

    /// Returns the hashes of the keys whose entries must not be evicted for the deferred weight: that of the write that
    /// was the last to defer evictions, and that of the last write of all.
    pub(super) fn exempt(&self) -> [u64; 2] {
        [self.deferred_for(), self.last_written.load(Relaxed)]
    }

    /// Begins to evict deferred weight, unless another call does so at the moment. No entry may be dropped during the
    /// turn, since `Drop` is user code.
    pub(super) fn try_begin_turn(&self) -> Option<EvictionTurn<'_>> {
        match self.turn.try_lock() {
            Ok(guard) => Some(EvictionTurn { weight: &self.weight, _guard: guard }),
            // Poisoned by a `Hash` that panicked: the weight is still deferred.
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(EvictionTurn { weight: &self.weight, _guard: poisoned.into_inner() })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
