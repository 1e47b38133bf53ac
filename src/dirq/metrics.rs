//! Metrics of a queue in this process, exported to the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(feature = "metrics")]
use std::{
    path::Path,
    sync::{Arc, Weak, atomic::AtomicBool},
    time::Duration,
};

#[cfg(feature = "metrics")]
use super::depth::{DepthGauge, Measured};
#[cfg(feature = "metrics")]
use crate::engine::metrics::{
    MetricValues, RegistrationCell, Series, Source, counter, gauge, register,
};

#[cfg(feature = "metrics")]
static SERIES: [Series; 7] = [
    counter("fleeting_queue_added_total", "Elements added by this process."),
    counter("fleeting_queue_removed_total", "Elements removed by this process."),
    gauge("fleeting_queue_length", "Elements in the directory, of all processes, or NaN."),
    gauge("fleeting_queue_locked", "Locked elements, or NaN."),
    gauge("fleeting_queue_resting", "Elements that failed and wait for their backoff, or NaN."),
    gauge("fleeting_queue_dead", "Dead letters, or NaN."),
    gauge(
        "fleeting_queue_oldest_seconds",
        "Time since the oldest element was added that is not a dead letter, 0 or NaN.",
    ),
];

/// Metrics of all handles of this process on one path.
#[derive(Debug, Default)]
pub(super) struct QueueMetrics {
    added: AtomicU64,
    removed: AtomicU64,
    #[cfg(feature = "metrics")]
    depth: DepthGauge,
    #[cfg(feature = "metrics")]
    is_registered: AtomicBool,
    #[cfg(feature = "metrics")]
    registration: RegistrationCell,
}

impl QueueMetrics {
    // `Relaxed`, as below: counters and the flag order no other memory.
    pub(super) fn added(&self, elements: usize) {
        self.added.fetch_add(elements as u64, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }

    /// Registers a handle of the queue with the exporter, labelled with its path.
    #[cfg(feature = "metrics")]
    pub(super) fn register(self: &Arc<Self>, path: &Path, queue: Weak<dyn Measured>) {
        self.depth.add_handle(queue);
        if !self.is_registered.swap(true, Relaxed) {
            let source: Weak<Self> = Arc::downgrade(self);
            register(&SERIES, &path.to_string_lossy(), source, &self.registration);
        }
    }
}

#[cfg(feature = "metrics")]
impl Source for QueueMetrics {
    fn read(&self, values: &mut MetricValues) {
        values.count(self.added.load(Relaxed));
        values.count(self.removed.load(Relaxed));
        let depth = self.depth.read();
        let counts = depth.map(|depth| [depth.length, depth.locked, depth.resting, depth.dead]);
        // An unknown number must not look like an empty queue.
        let counts = counts.map_or([f64::NAN; 4], |counts| counts.map(|count| count as f64));
        counts.into_iter().for_each(|count| values.level(count));
        values.level(depth.map_or(f64::NAN, |depth| Duration::as_secs_f64(&depth.oldest)));
    }
}
