//! What a spool tells of itself to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::writer::Writer;
use crate::engine::metrics::{Figures, Series, Source, counter, gauge, register};

static SERIES: [Series; 7] = [
    counter(
        "fleeting_spool_written_total",
        "Events that are in the queue, or were taken from it again.",
    ),
    counter(
        "fleeting_spool_unsynced_total",
        "Of these, those that a crash of the machine may take.",
    ),
    counter("fleeting_spool_unwritable_total", "Events that could not be made JSON of."),
    counter(
        "fleeting_spool_skipped_total",
        "Events that were too large for the queue, and skipped.",
    ),
    counter("fleeting_spool_failures_total", "Tries to write that failed."),
    gauge("fleeting_spool_in_hand", "Events that are not known to be in the queue."),
    gauge("fleeting_spool_stalled_seconds", "For how long the queue has refused what is in hand."),
];

/// Has a spool tell of itself, by the path of its queue.
pub(super) fn register_spool(writer: &Arc<Writer>) {
    let source: Weak<Writer> = Arc::downgrade(writer);
    register(&SERIES, &writer.queue().path().to_string_lossy(), source, &writer.registration);
}

impl Source for Writer {
    fn read(&self, figures: &mut Figures) {
        let stats = self.stats();
        figures.count(stats.written);
        figures.count(stats.unsynced);
        figures.count(stats.unwritable);
        figures.count(stats.skipped);
        figures.count(stats.failures);
        figures.level(stats.in_hand as f64);
        figures.level(stats.stalled.unwrap_or_default().as_secs_f64());
    }
}
