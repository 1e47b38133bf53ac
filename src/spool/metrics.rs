//! Metrics of a spool, exported to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::writer::Writer;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

static SERIES: [Series; 7] = [
    counter("fleeting_spool_written_total", "Events written to the queue."),
    counter(
        "fleeting_spool_unsynced_total",
        "Events written to the queue that may not survive a crash of the machine, because syncing failed.",
    ),
    counter("fleeting_spool_unwritable_total", "Events that could not be serialized."),
    counter(
        "fleeting_spool_skipped_total",
        "Events skipped because they were too large for the queue.",
    ),
    counter("fleeting_spool_failures_total", "Failed attempts to write."),
    gauge("fleeting_spool_in_hand", "Events taken off a stream and not yet in the queue."),
    gauge(
        "fleeting_spool_stalled_seconds",
        "Time for which the queue has rejected the events in hand.",
    ),
];

/// Registers a spool with the exporter, labelled with the path of its queue.
pub(super) fn register_spool(writer: &Arc<Writer>) {
    let source: Weak<Writer> = Arc::downgrade(writer);
    register(&SERIES, &writer.queue().path().to_string_lossy(), source, &writer.registration);
}

impl Source for Writer {
    fn read(&self, values: &mut MetricValues) {
        let stats = self.stats();
        values.count(stats.written);
        values.count(stats.unsynced);
        values.count(stats.unwritable);
        values.count(stats.skipped);
        values.count(stats.failures);
        values.level(stats.in_hand as f64);
        values.level(stats.stalled.unwrap_or_default().as_secs_f64());
    }
}
