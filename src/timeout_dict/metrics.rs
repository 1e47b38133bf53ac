//! Metrics of a timeout dictionary for the `metrics` facade.

use std::sync::{Arc, Weak};

use super::dict_state::DictState;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

/// The series of a dictionary, also of one on Redis.
pub(crate) const SERIES: [Series; 10] = [
    gauge("fleeting_dict_entries", "Entries, including dead ones."),
    gauge("fleeting_dict_dead", "Dead entries: all attempts failed."),
    gauge("fleeting_dict_due", "Due entries that are not leased, or whose lease has ended."),
    gauge("fleeting_dict_leased", "Claimed entries whose lease ends later."),
    gauge("fleeting_dict_resting", "Entries that failed and wait for another attempt, due or not."),
    gauge(
        "fleeting_dict_oldest_due_seconds",
        "Time since the deadline of the entry that has been due for longest, or 0.",
    ),
    counter("fleeting_dict_taken_total", "Due entries that were taken without a claim."),
    counter("fleeting_dict_claims_total", "Claims delivered."),
    counter("fleeting_dict_acked_total", "Claims acknowledged."),
    counter(
        "fleeting_dict_failed_total",
        "Failed attempts: claims dropped, failed or postponed, and leases that ended.",
    ),
];

/// Registers the metrics of a dictionary.
pub(super) fn follow<K, V>(shared: &Arc<DictState<K, V>>, name: &str)
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let source: Weak<DictState<K, V>> = Arc::downgrade(shared);
    register(&SERIES, name, source, &shared.registration);
}

impl<K, V> Source for DictState<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn read(&self, values: &mut MetricValues) {
        let now = self.clock.now();
        let (len, dead, due, counts) = self.with(|entries| {
            (entries.len(), entries.dead_len(), entries.due(now), entries.counts())
        });
        values.level(len as f64);
        values.level(dead as f64);
        values.level(due.due as f64);
        values.level(due.leased as f64);
        values.level(due.resting as f64);
        values.level(due.oldest.as_secs_f64());
        values.count(counts.taken);
        values.count(counts.claims);
        values.count(counts.acked);
        values.count(counts.failed);
    }
}
