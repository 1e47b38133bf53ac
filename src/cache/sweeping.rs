//! Sweeping by hand, and pausing the sweeper.

use std::hash::{BuildHasher, Hash};

use super::Cache;
use crate::engine::{
    state::SharedState,
    sweeper::{Step, SweepReport, SweepRun, shrink},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Sweeps once, now, also while the sweeper is paused or there is none. It gives the memory of
    /// nearly empty shards back; what they still hold moves with the next sweep.
    ///
    /// It never waits for a subscriber: where a lossless one has no room, the sweep ends there and
    /// [`SweepReport::held_back`] is true.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it has not looked at, the next sweep will.
    pub async fn sweep(&self) -> SweepReport {
        if let Some(failures) = &self.lives.failures {
            sweep(failures.of_keys()).await;
        }
        sweep(&self.shared).await
    }

    /// Lets the sweeper rest. Reads stay right: dead values just stay in memory.
    pub fn pause_sweeper(&self) {
        self.shared.pause(true);
    }

    /// Lets the sweeper work again, from its next tick.
    pub fn resume_sweeper(&self) {
        self.shared.pause(false);
    }
}

async fn sweep<K, V, S>(shared: &SharedState<K, V, S>) -> SweepReport
where
    K: Hash + Eq + Clone,
    S: BuildHasher + Clone,
{
    let mut sweep = SweepRun::new(shared);
    while let Step::Yield = sweep.step_safely(shared) {
        tokio::task::yield_now().await;
    }
    let report = sweep.finish(shared);
    for shard in 0..shared.store.shard_count() {
        if shrink(shared, shard) {
            tokio::task::yield_now().await;
        }
    }
    report
}
