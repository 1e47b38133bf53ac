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
pub(super) struct Counts {
    added: AtomicU64,
    removed: AtomicU64,
    #[cfg(feature = "metrics")]
    registration: Slot,
}

impl Counts {
    pub(super) fn added(&self, elements: usize) {
        self.added.fetch_add(elements as u64, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }
}

/// Has a queue tell of itself, by its path.
#[cfg(feature = "metrics")]
pub(super) fn follow(counts: &Arc<Counts>, path: &Path) {
    let source: Weak<Counts> = Arc::downgrade(counts);
    register(&SERIES, &path.to_string_lossy(), source, &counts.registration);
}

#[cfg(feature = "metrics")]
impl Source for Counts {
    fn read(&self, figures: &mut Figures) {
        figures.count(self.added.load(Relaxed));
        figures.count(self.removed.load(Relaxed));
    }
}
