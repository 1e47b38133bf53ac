//! Starts the sweeper task, and replaces it when the settings change.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{config::Sweep, task::run};
use crate::engine::{shared_state::SharedState, tasks::spawn};

/// Wraps `state` in an `Arc`, and starts its sweeper on its runtime.
///
/// # Panics
///
/// Panics on a runtime without a time driver.
pub(crate) fn start<K, V, S>(state: SharedState<K, V, S>) -> Arc<SharedState<K, V, S>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let shared = Arc::new(state);
    set_sweep(&shared, shared.sweep());
    shared
}

/// Applies new settings: replaces the sweeper task, if there is one.
///
/// # Panics
///
/// Panics on a runtime without a time driver, if the new settings have an interval.
pub(crate) fn set_sweep<K, V, S>(shared: &Arc<SharedState<K, V, S>>, sweep: Sweep)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let _context = shared.runtime.enter();
    // Created here, so that a missing time driver panics in the caller and not in the task.
    let interval = sweep.every.map(|every| interval(every, shared.clock.until_beat(every)));
    let sweeper =
        interval.map(|interval| run(Arc::downgrade(shared), shared.publisher.clone(), interval));
    let start =
        || sweeper.map(|task| spawn(&shared.runtime, "sweeper", shared.name(), Box::pin(task)));
    if let Some(before) = shared.replace_task(sweep, start) {
        // Not awaited, because its runtime may not be driven. If both tasks sweep for a moment, the shard locks keep
        // them apart.
        before.abort();
    }
}

fn interval(every: Duration, first: Duration) -> Interval {
    let first = Instant::now().checked_add(first).unwrap_or_else(far_future);
    let mut interval = interval_at(first, every);
    // After a late tick, back to the common rhythm (`until_beat`), so that all caches keep waking the process together.
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Returns an instant in thirty years, as Tokio's own timers use for deadlines that overflow.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 86_400)
}
