//! Numbers of elements of a queue, for its metrics. They are measured on the disk, by a thread of their own: neither
//! the exporter of metrics nor a worker of a runtime waits for a disk.

use std::{
    sync::{Arc, Mutex, Weak},
    thread,
    time::Duration,
};

use super::{Error, mutex::lock};
use crate::engine::metrics::{Measurement, RunningMeasurement};

/// A queue is measured during at most one hundredth of the time: a long queue is measured rarely.
const SHARE: u32 = 100;

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

/// The depth of a queue, and the handles that measure it. All handles of the queue share it.
#[derive(Default)]
pub(super) struct DepthGauge {
    /// The handles of the queue: the first that exists measures it.
    handles: Mutex<Vec<Weak<dyn Measured>>>,
    measurement: Arc<Measurement<Depth>>,
}

/// A queue that can be measured.
pub(super) trait Measured: Send + Sync {
    fn measure(&self) -> Result<Depth, Error>;
}

impl DepthGauge {
    /// Adds a handle of the queue.
    pub(super) fn add_handle(&self, queue: Weak<dyn Measured>) {
        let mut handles = lock(&self.handles);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(queue);
    }

    /// Returns the latest depth, and begins a measurement if it is too old. Does not wait for it. Returns `None` if the
    /// depth is unknown, because the queue was not measured yet or cannot be read.
    pub(super) fn read(&self) -> Option<Depth> {
        self.measurement.read(|running| {
            let queue = lock(&self.handles).iter().find_map(Weak::upgrade);
            if let Some(queue) = queue {
                spawn_measurement(queue, running);
            }
        })
    }
}

fn spawn_measurement(queue: Arc<dyn Measured>, running: RunningMeasurement<Depth>) {
    let measure = move || running.end(queue.measure().ok(), SHARE);
    if let Err(error) = thread::Builder::new().name("fleeting-queue".into()).spawn(measure) {
        tracing::error!(%error, "failed to spawn the thread that measures a queue");
    }
}

// `dyn Measured` has no `Debug`.
impl std::fmt::Debug for DepthGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DepthGauge").field("measurement", &self.measurement).finish_non_exhaustive()
    }
}
