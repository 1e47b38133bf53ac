//! Counters of a queue in this process, exported to the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(feature = "metrics")]
use std::{
    path::Path,
    sync::{Arc, Weak},
};

#[cfg(feature = "dashboard")]
use crate::engine::metrics::QueueDepth;
#[cfg(feature = "metrics")]
use crate::engine::metrics::{MetricValues, Series, Slot, Source, counter, register};

#[cfg(feature = "metrics")]
static SERIES: [Series; 2] = [
    counter("fleeting_queue_added_total", "Elements added by this process."),
    counter("fleeting_queue_removed_total", "Elements removed by this process."),
];

#[derive(Debug, Default)]
pub(super) struct QueueMetrics {
    added: AtomicU64,
    removed: AtomicU64,
    #[cfg(feature = "metrics")]
    registration: Slot,
    #[cfg(feature = "dashboard")]
    measured: MeasuredQueue,
}

impl QueueMetrics {
    // `Relaxed`, as below: counters order no other memory.
    pub(super) fn added(&self, elements: usize) {
        self.added.fetch_add(elements as u64, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }

    /// Sets the function by which the dashboard measures the queue.
    #[cfg(feature = "dashboard")]
    pub(super) fn measure_by(&self, depth: Measure) {
        // Cannot fail: a queue is opened once.
        let _ = self.measured.0.set(std::panic::AssertUnwindSafe(depth));
    }
}

/// Counts the elements of a queue on the disk; returns `None` if it cannot be read.
#[cfg(feature = "dashboard")]
pub(super) type Measure = Box<dyn Fn() -> Option<QueueDepth> + Send + Sync>;

/// Function that measures the queue. Set after the queue was opened, because a queue owns its metrics.
/// A panic in it leaves nothing broken: it only reads.
#[cfg(feature = "dashboard")]
#[derive(Default)]
struct MeasuredQueue(std::sync::OnceLock<std::panic::AssertUnwindSafe<Measure>>);

#[cfg(feature = "dashboard")]
impl std::fmt::Debug for MeasuredQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeasuredQueue").finish_non_exhaustive()
    }
}

/// Registers a queue with the exporter, labelled with its path.
#[cfg(feature = "metrics")]
pub(super) fn register_queue(metrics: &Arc<QueueMetrics>, path: &Path) {
    let source: Weak<QueueMetrics> = Arc::downgrade(metrics);
    register(&SERIES, &path.to_string_lossy(), source, &metrics.registration);
}

#[cfg(feature = "metrics")]
impl Source for QueueMetrics {
    fn read(&self, figures: &mut MetricValues) {
        figures.count(self.added.load(Relaxed));
        figures.count(self.removed.load(Relaxed));
    }

    #[cfg(feature = "dashboard")]
    fn may_be_measured(&self) -> bool {
        self.measured.0.get().is_some()
    }

    #[cfg(feature = "dashboard")]
    fn depth(&self) -> Option<QueueDepth> {
        (self.measured.0.get()?.0)()
    }
}
