//! Which shard is to be swept when: what a push tells the sweeper, and all that the sweeper looks at without a lock.
//!
//! 1. Of each shard, `shards` knows a score that none in it is below, but while its lock is held: there it is written.
//! 2. `soonest` is not above any of them; where a push lowers it, it rings the alarm. So between two sweeps the sweeper
//!    looks at one word, however many shards there are.
//! 3. Both may be too low, after a removal, which costs a look in vain. Only a sweep raises them.

use crate::engine::{
    clock::Tick,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

pub(super) struct Schedule {
    shards: Box<[AtomicU64]>,
    soonest: AtomicU64,
}

/// The score of nothing. One of this very tick never dies, or when time ends.
const NEVER: u64 = u64::MAX;

impl Schedule {
    pub(super) fn new(shards: usize) -> Self {
        let never = || AtomicU64::new(NEVER);
        Self { shards: (0..shards).map(|_| never()).collect(), soonest: never() }
    }

    /// Under the lock of a shard: it has come to this lowest score. Tells whether to ring the alarm.
    #[inline]
    pub(super) fn note(&self, shard: usize, lowest: Option<Tick>) -> bool {
        let lowest = word(lowest);
        lowest < self.shards[shard].load(Relaxed) && self.lower(shard, lowest)
    }

    /// Under the lock of a shard: it was swept, and this lowest score is left.
    pub(super) fn note_swept(&self, shard: usize, lowest: Option<Tick>) {
        self.shards[shard].store(word(lowest), Relaxed);
    }

    /// No score is lower than this.
    pub(super) fn soonest(&self) -> Option<Tick> {
        tick(self.soonest.load(Acquire))
    }

    /// No score in this shard is lower than this.
    pub(super) fn lowest(&self, shard: usize) -> Option<Tick> {
        tick(self.shards[shard].load(Relaxed))
    }

    /// After a sweep: finds the soonest of what is left. For the sweeper alone.
    pub(super) fn renew(&self) {
        // In this order. What was lowered before the swap is seen by the loads, as the swap reads what `lower` wrote
        // after it; what is lowered later stays, as the minimum is taken with it.
        self.soonest.swap(NEVER, AcqRel);
        let soonest = self.shards.iter().map(|shard| shard.load(Relaxed)).min();
        self.soonest.fetch_min(soonest.unwrap_or(NEVER), AcqRel);
    }

    #[cold]
    fn lower(&self, shard: usize, lowest: u64) -> bool {
        self.shards[shard].store(lowest, Relaxed);
        lowest < self.soonest.fetch_min(lowest, AcqRel)
    }
}

fn word(score: Option<Tick>) -> u64 {
    score.map_or(NEVER, Tick::nanoseconds)
}

fn tick(word: u64) -> Option<Tick> {
    (word != NEVER).then(|| Tick::from_nanoseconds(word))
}
