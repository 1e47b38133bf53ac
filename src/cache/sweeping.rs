//! Sweeping by hand, and pausing the sweeper.

use std::hash::{BuildHasher, Hash};

use super::Cache;
use crate::engine::{
    state::SharedState,
    sweeper::{self, Step, Sweep, SweepReport, SweepRun, shrink},
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
        if let Some(failures) = &self.freshness_policy.failures {
            sweep(failures.of_keys()).await;
        }
        sweep(&self.shared).await
    }

    /// Has this cache swept otherwise from now on: more often, less at a time, by hand alone
    /// ([`Sweep::manual`]), or by a task again.
    ///
    /// The first sweep comes one pause after the call, and a sweep under way ends as it began, if it is one of
    /// [`sweep`](Cache::sweep). A sweeper that is [paused](Cache::pause_sweeper) stays so. A
    /// [`seed`](Sweep::seed) begins its random choices anew, none goes on with those that there are. After
    /// [`shutdown`](Cache::shutdown) there is no task, whatever is set.
    ///
    /// # Panics
    ///
    /// Where a task is asked for, and the runtime of the cache has no time driver (`enable_time`).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Sweep};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().sweep(Sweep::manual()).build();
    /// cache.set_ex("ada", 42, Duration::from_secs(1)).await;
    /// tokio::time::sleep(Duration::from_secs(10)).await;
    /// assert_eq!(cache.len(), 1); // dead, and still in memory
    ///
    /// cache.set_sweep(Sweep::default().every(Duration::from_millis(50)));
    /// tokio::time::sleep(Duration::from_millis(60)).await;
    /// assert_eq!(cache.len(), 0);
    /// # }
    /// ```
    pub fn set_sweep(&self, sweep: Sweep) {
        if let Some(failures) = &self.freshness_policy.failures {
            sweeper::set_sweep(failures.of_keys(), sweep);
        }
        sweeper::set_sweep(&self.shared, sweep);
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
