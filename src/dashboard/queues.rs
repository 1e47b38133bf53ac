//! Lengths of directory queues. They are measured on the disk, by a thread of their own: a disk that hangs must not stop
//! the dashboard.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::engine::metrics::{QueueDepth, Reading, Source};

/// Interval at which queues are looked at, and the shortest time between two measurements of one.
const INTERVAL: Duration = Duration::from_secs(2);

/// Maximum share of time that one queue is measured: a long queue is measured rarely.
const PAUSE_PER_TIME: u32 = 500;

/// The queues of the last sample, and their measured lengths.
#[derive(Default)]
pub(super) struct Queues(Mutex<State>);

#[derive(Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    /// True once the thread was started.
    has_thread: bool,
}

struct Queue {
    source: Weak<dyn Source>,
    depth: Option<QueueDepth>,
    /// Time of the next measurement.
    next: Instant,
}

impl Queues {
    /// Adds a queue, unless it is known, and returns its last measured depth. Returns `None` for other objects.
    pub(super) fn depth(self: &Arc<Self>, reading: &Reading) -> Option<QueueDepth> {
        let source = reading.sources.iter().find(|source| source.may_be_measured())?;
        let mut state = self.state();
        let known = state.queues.get(&reading.name);
        let depth = known.and_then(|queue| queue.depth);
        if known.is_none_or(|queue| queue.source.strong_count() == 0) {
            let queue = Queue { source: Arc::downgrade(source), depth, next: Instant::now() };
            state.queues.insert(reading.name.clone(), queue);
        }
        if !std::mem::replace(&mut state.has_thread, true) {
            spawn_thread(Arc::downgrade(self));
        }
        depth
    }

    /// Returns the queues that are due to be measured, and forgets those that no longer exist.
    fn due(&self) -> Vec<(String, Arc<dyn Source>)> {
        let now = Instant::now();
        let mut state = self.state();
        state.queues.retain(|_, queue| queue.source.strong_count() > 0);
        let due = state.queues.iter().filter(|(_, queue)| queue.next <= now);
        due.filter_map(|(name, queue)| Some((name.clone(), queue.source.upgrade()?))).collect()
    }

    fn record(&self, name: &str, depth: Option<QueueDepth>, took: Duration) {
        if let Some(queue) = self.state().queues.get_mut(name) {
            // After an error, the last known depth stays.
            queue.depth = depth.or(queue.depth);
            queue.next = Instant::now() + INTERVAL.max(took.saturating_mul(PAUSE_PER_TIME));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread, which measures until the dashboard is dropped.
fn spawn_thread(queues: Weak<Queues>) {
    let measure = move || {
        while let Some(due) = queues.upgrade().map(|queues| queues.due()) {
            for (name, source) in due {
                let start = Instant::now();
                let depth = source.depth();
                let Some(queues) = queues.upgrade() else { return };
                queues.record(&name, depth, start.elapsed());
            }
            thread::sleep(INTERVAL);
        }
    };
    if let Err(error) = thread::Builder::new().name("fleeting-queues".into()).spawn(measure) {
        tracing::error!(%error, "failed to spawn the thread that measures queues");
    }
}
