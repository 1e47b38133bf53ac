//! Methods that control the sweeper: sweep now, reconfigure, pause and resume.

use std::hash::{BuildHasher, Hash};

use super::Cache;
use crate::engine::sweeper::{self, Leftovers, Step, Sweep, SweepReport, SweepRun, shrink};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Runs one sweep now and returns its report, even if the sweeper is paused or [manual](Sweep::manual).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Sweep};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().sweep(Sweep::manual()).build();
    /// cache.set_ex("ada", 42, Duration::from_secs(1)).await;
    /// tokio::time::advance(Duration::from_secs(1)).await;
    /// assert_eq!(cache.sweep().await.expired, 1);
    /// assert!(cache.is_empty());
    /// # }
    /// ```
    ///
    /// It also begins to shrink the tables of shards that have become sparse. The next sweep moves their entries to
    /// smaller tables, and then the memory of the old tables is freed.
    ///
    /// It never waits for a subscriber: if a lossless stream of expirations is full, the sweep stops there; if one of
    /// removals is full, entries with removed tags stay in memory. [`SweepReport::held_back`] is then true.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the next sweep examines the entries that a cancelled one did not reach.
    #[doc(alias = "run_pending_tasks")]
    pub async fn sweep(&self) -> SweepReport {
        let shared = &*self.inner.shared;
        let mut run = SweepRun::new(shared, Leftovers::default());
        while let Step::Yield = run.step_safely(shared) {
            tokio::task::yield_now().await;
        }
        let report = run.finish(shared);
        for shard in 0..shared.store.shard_count() {
            if shrink(shared, shard) {
                tokio::task::yield_now().await;
            }
        }
        report
    }

    /// Changes the sweep settings of a running cache.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Sweep};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().sweep(Sweep::manual()).build();
    /// cache.set_ex("ada", 42, Duration::from_secs(1)).await;
    /// tokio::time::sleep(Duration::from_secs(10)).await;
    /// assert_eq!(cache.len(), 1); // expired, but still in memory
    ///
    /// cache.set_sweep(Sweep::default().every(Duration::from_millis(50)));
    /// tokio::time::sleep(Duration::from_millis(60)).await;
    /// assert_eq!(cache.len(), 0);
    /// # }
    /// ```
    ///
    /// This can change the interval and the sample, stop the sweeper task ([`Sweep::manual`]), or start one again. The
    /// first sweep starts one interval after the call. A sweep already started by [`sweep`](Cache::sweep) keeps its
    /// settings. A [paused](Cache::pause_sweeper) sweeper stays paused. A [`seed`](Sweep::seed) restarts the random
    /// choices; without one they continue. After [`shutdown`](Cache::shutdown) no task is started.
    ///
    /// # Panics
    ///
    /// Panics if `sweep` needs a task and the runtime of the cache has no time driver (`enable_time`).
    pub fn set_sweep(&self, sweep: Sweep) {
        sweeper::set_sweep(&self.inner.shared, sweep);
    }

    /// Pauses the sweeper. Expired entries stay in memory, and their events are delayed, but their values are still
    /// never returned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set_ex("token", "ada", Duration::from_secs(30)).await;
    ///
    /// // No removals while a batch job needs all cores.
    /// sessions.pause_sweeper();
    /// tokio::time::sleep(Duration::from_secs(60)).await;
    /// assert_eq!((sessions.len(), sessions.get("token").await), (1, None));
    ///
    /// sessions.resume_sweeper();
    /// tokio::time::sleep(Duration::from_secs(1)).await;
    /// assert_eq!(sessions.len(), 0);
    /// # }
    /// ```
    pub fn pause_sweeper(&self) {
        self.inner.shared.pause(true);
    }

    /// Resumes a paused sweeper at its next tick.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let uploads = Cache::new();
    /// uploads.pause_sweeper();
    /// uploads.set_ex("photo.jpg", 1, Duration::ZERO).await;
    /// uploads.resume_sweeper();
    /// tokio::time::sleep(Duration::from_secs(1)).await;
    /// assert_eq!(uploads.len(), 0);
    /// # }
    /// ```
    pub fn resume_sweeper(&self) {
        self.inner.shared.pause(false);
    }
}
