//! Counters of a queue in this process, exported to the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(feature = "metrics")]
use std::{
    path::Path,
    sync::{Arc, Weak},
};

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
}

impl QueueMetrics {
    // `Relaxed`, as below: counters order no other memory.
    pub(super) fn added(&self, elements: usize) {
        self.added.fetch_add(elements as u64, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
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
}
