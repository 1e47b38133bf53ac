use std::hash::{BuildHasher, Hash};

use tokio::task::consume_budget;

use super::{Cache, Stats};
use crate::sweeper::{Step, SweepReport, SweepRun};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Sweeps once, now, also while the sweeper is paused or there is none.
    ///
    /// It never waits for a subscriber: where a lossless one has no room, the sweep ends there and
    /// [`SweepReport::held_back`] is true.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it has not looked at, the next sweep will.
    pub async fn sweep(&self) -> SweepReport {
        let mut sweep = SweepRun::new(&self.shared);
        while let Step::Yield = sweep.step_safely(&self.shared) {
            tokio::task::yield_now().await;
        }
        sweep.finish(&self.shared)
    }

    /// Lets the sweeper rest. Reads stay right: dead values just stay in memory.
    pub fn pause_sweeper(&self) {
        self.shared.pause(true);
    }

    /// Lets the sweeper work again, from its next tick.
    pub fn resume_sweeper(&self) {
        self.shared.pause(false);
    }

    /// What the cache has done and holds. O(shards).
    pub fn stats(&self) -> Stats {
        let counts = self.shared.store.counts();
        let sweeps = self.shared.sweeps();
        Stats {
            resident: self.len(),
            hits: counts.hits,
            misses: counts.misses,
            expired: counts.expired,
            removed: counts.removed,
            replaced: counts.replaced,
            sweeps: sweeps.count,
            last_sweep: sweeps.last,
            swept: sweeps.total,
            subscribers: self.shared.publisher.subscribers(),
            overflow: self.shared.publisher.overflow(),
        }
    }

    /// Stops the sweeper, lets what is dead by now leave, and ends the streams after what they hold.
    ///
    /// It waits for no subscriber: what goes beyond the capacity of a lossless one waits for it as
    /// overflow. Afterwards reads and writes still work, without a sweeper and without events.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done may leave the streams open; call it again.
    pub async fn shutdown(&self) {
        // Not awaited: its runtime may be at rest. A window that it is at ends under its shard's lock,
        // for which the look below waits.
        if let Some(task) = self.shared.take_task() {
            task.abort();
        }
        for shard in 0..self.shared.store.shard_count() {
            consume_budget().await;
            self.shared.expire_shard(shard);
        }
        self.shared.publisher.close();
    }
}
