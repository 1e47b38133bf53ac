//! How the task that sweeps is started, and another one in its place.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{config::Sweep, task::run};
use crate::engine::{state::SharedState, tasks::spawn};

/// Shares `state`, and starts its sweeper on its runtime.
///
/// # Panics
///
/// On a runtime without a time driver.
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

/// Has sweeps be so from now on: by another task, in place of the one that there may be.
///
/// # Panics
///
/// On a runtime without a time driver, where there is to be a task.
pub(crate) fn set_sweep<K, V, S>(shared: &Arc<SharedState<K, V, S>>, sweep: Sweep)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let _context = shared.runtime.enter();
    // Made here, so that a runtime without time panics here and not in the task.
    let interval = sweep.every.map(|every| interval(every, shared.clock.until_beat(every)));
    let sweeper =
        interval.map(|interval| run(Arc::downgrade(shared), shared.publisher.clone(), interval));
    let start = || sweeper.map(|task| spawn(&shared.runtime, "sweeper", shared.name(), task));
    if let Some(before) = shared.exchange_task(sweep, start) {
        // Not awaited: its runtime may be at rest. Two that meet look at one window after the other.
        before.abort();
    }
}

fn interval(every: Duration, first: Duration) -> Interval {
    let first = Instant::now().checked_add(first).unwrap_or_else(far_future);
    let mut interval = interval_at(first, every);
    // On the beat again after a tick that came late, so that caches go on to tick together.
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Thirty years, as Tokio's own timers put it.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 86_400)
}
