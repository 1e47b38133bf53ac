//! Numbers of elements of a queue, for its metrics. They are measured on the disk, by a thread of their own: neither the
//! exporter of metrics nor a worker of a runtime waits for a disk.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::Error;

/// The shortest time between the beginnings of two measurements of one queue.
const INTERVAL: Duration = Duration::from_secs(10);
/// A queue is measured during at most one hundredth of the time: a long queue is measured rarely.
const PAUSE_PER_TIME: u32 = 100;
/// The time after which a measurement that has not ended makes the depth unknown: the disk hangs.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Numbers of elements of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depth {
    /// All elements.
    pub(super) length: u64,
    pub(super) locked: u64,
    /// Elements that failed and wait for their backoff.
    pub(super) resting: u64,
    /// Dead letters.
    pub(super) dead: u64,
    /// Time since the oldest element was added that is not a dead letter, or zero.
    pub(super) oldest: Duration,
}

/// The depth of a queue, and the thread that measures it. All handles of the queue share it.
#[derive(Debug, Default)]
pub(super) struct DepthGauge(Mutex<State>);

#[derive(Default)]
struct State {
    /// The handles of the queue: the first that exists measures it.
    handles: Vec<Weak<dyn Measured>>,
    /// The latest depth; `None` if it is unknown.
    depth: Option<Depth>,
    /// Time of the next measurement; `None` before the first.
    next: Option<Instant>,
    /// Time at which the current measurement began.
    running_since: Option<Instant>,
}

/// A queue that can be measured.
pub(super) trait Measured: Send + Sync {
    fn measure(&self) -> Result<Depth, Error>;
}

impl DepthGauge {
    /// Adds a handle of the queue.
    pub(super) fn add_handle(&self, queue: Weak<dyn Measured>) {
        let mut state = self.state();
        state.handles.retain(|handle| handle.strong_count() > 0);
        state.handles.push(queue);
    }

    /// Returns the latest depth, and begins a measurement if it is too old. Does not wait for it. Returns `None` if the
    /// depth is unknown, because the queue was not measured yet or cannot be read.
    pub(super) fn read(self: &Arc<Self>) -> Option<Depth> {
        let now = Instant::now();
        let (depth, queue) = {
            let mut state = self.state();
            if let Some(since) = state.running_since {
                return state.depth.filter(|_| now.duration_since(since) < MAX_TIME);
            }
            let is_due = state.next.is_none_or(|next| next <= now);
            let queue = if is_due { state.handles.iter().find_map(Weak::upgrade) } else { None };
            state.running_since = queue.is_some().then_some(now);
            (state.depth, queue)
        };
        if let Some(queue) = queue {
            self.clone().spawn_measurement(queue, now);
        }
        depth
    }

    fn spawn_measurement(self: Arc<Self>, queue: Arc<dyn Measured>, start: Instant) {
        let gauge = self.clone();
        let measure = move || gauge.record(queue.measure().ok(), start);
        if let Err(error) = thread::Builder::new().name("fleeting-queue".into()).spawn(measure) {
            tracing::error!(%error, "failed to spawn the thread that measures a queue");
            self.record(None, start);
        }
    }

    fn record(&self, depth: Option<Depth>, start: Instant) {
        let mut state = self.state();
        state.depth = depth;
        state.next = Some(start + INTERVAL.max(start.elapsed().saturating_mul(PAUSE_PER_TIME)));
        state.running_since = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a thread can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// `dyn Measured` has no `Debug`.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("depth", &self.depth).finish_non_exhaustive()
    }
}
