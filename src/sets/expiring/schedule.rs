//! Times at which shards need a sweep, readable without a lock. Pushes update them, and the sweeper sleeps and selects
//! shards by them.
//!
//! 1. `shards` holds a lower bound on the scores of each shard. It is written only under that shard's lock, and may be
//!    outdated only while that lock is held.
//! 2. `lowest_of_all` is at most the minimum of `shards`. A push that lowers it wakes the sweeper. So between two
//!    sweeps the sweeper reads only one word, regardless of the number of shards.
//! 3. Both may be too low after a removal; that costs one unnecessary check. Only a sweep raises them.

use crate::engine::{
    clock::Tick,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

pub(super) struct Schedule {
    shards: Box<[AtomicU64]>,
    lowest_of_all: AtomicU64,
}

/// Marks the absence of a score. A member whose score is this very tick, the end of time, never expires and so needs no
/// sweep.
const NO_SCORE: u64 = u64::MAX;

impl Schedule {
    pub(super) fn new(shards: usize) -> Self {
        let no_score = || AtomicU64::new(NO_SCORE);
        Self { shards: (0..shards).map(|_| no_score()).collect(), lowest_of_all: no_score() }
    }

    /// Records the lowest score of a shard; called under its lock. Returns whether the sweeper must be woken.
    #[inline]
    pub(super) fn record_lowest(&self, shard: usize, lowest: Option<Tick>) -> bool {
        let lowest = encode(lowest);
        // `Relaxed`: written only under the shard's lock, which the caller holds. Most pushes end here, with one load.
        lowest < self.shards[shard].load(Relaxed) && self.lower(shard, lowest)
    }

    /// Records the lowest score that is left after a sweep of a shard; called under its lock.
    pub(super) fn record_swept(&self, shard: usize, lowest: Option<Tick>) {
        // Only the sweeper calls this, under the shard's lock, and then reads the word itself in `recompute`.
        self.shards[shard].store(encode(lowest), Relaxed);
    }

    /// Returns a lower bound on the scores of all shards.
    pub(super) fn lowest_of_all(&self) -> Option<Tick> {
        // Acquire: pairs with the release in `lower`, so that the sweeper also sees the shard's score.
        decode(self.lowest_of_all.load(Acquire))
    }

    /// Returns a lower bound on the scores of a shard.
    pub(super) fn lowest(&self, shard: usize) -> Option<Tick> {
        decode(self.shards[shard].load(Relaxed))
    }

    /// Recomputes the overall minimum after a sweep. Only the sweeper calls it.
    pub(super) fn recompute(&self) {
        // The order matters: first reset, then read the shards. A `lower` before the swap is visible to the loads,
        // because the swap acquires what `lower` released. A `lower` after the swap is kept, because `fetch_min` never
        // raises it.
        self.lowest_of_all.swap(NO_SCORE, AcqRel);
        let lowest = self.shards.iter().map(|shard| shard.load(Relaxed)).min();
        self.lowest_of_all.fetch_min(lowest.unwrap_or(NO_SCORE), AcqRel);
    }

    #[cold]
    fn lower(&self, shard: usize, lowest: u64) -> bool {
        self.shards[shard].store(lowest, Relaxed);
        // Release: publishes the store above to the sweeper, which acquires this word.
        lowest < self.lowest_of_all.fetch_min(lowest, AcqRel)
    }
}

fn encode(score: Option<Tick>) -> u64 {
    score.map_or(NO_SCORE, Tick::nanoseconds)
}

fn decode(word: u64) -> Option<Tick> {
    (word != NO_SCORE).then(|| Tick::from_nanoseconds(word))
}
