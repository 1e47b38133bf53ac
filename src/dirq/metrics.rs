//! What the handles of one queue in this process have done, and what they tell of it to the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(feature = "metrics")]
use std::{
    path::Path,
    sync::{Arc, Weak},
};

#[cfg(feature = "metrics")]
use crate::engine::metrics::{Figures, Series, Slot, Source, counter, register};

#[cfg(feature = "metrics")]
static SERIES: [Series; 2] = [
    counter("fleeting_queue_added_total", "Elements that this process added."),
    counter("fleeting_queue_removed_total", "Elements that this process took out."),
];

#[derive(Debug, Default)]
pub(super) struct QueueMetrics {
    added: AtomicU64,
    removed: AtomicU64,
    #[cfg(feature = "metrics")]
    registration: Slot,
}

impl QueueMetrics {
    pub(super) fn added(&self, elements: usize) {
        self.added.fetch_add(elements as u64, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }
}

/// Has a queue tell of itself, by its path.
#[cfg(feature = "metrics")]
pub(super) fn register_queue(metrics: &Arc<QueueMetrics>, path: &Path) {
    let source: Weak<QueueMetrics> = Arc::downgrade(metrics);
    register(&SERIES, &path.to_string_lossy(), source, &metrics.registration);
}

#[cfg(feature = "metrics")]
impl Source for QueueMetrics {
    fn read(&self, figures: &mut Figures) {
        figures.count(self.added.load(Relaxed));
        figures.count(self.removed.load(Relaxed));
    }
}
