//! What a dictionary tells of itself to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::state::SharedState;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

static SERIES: [Series; 6] = [
    gauge("fleeting_dict_entries", "Entries, the dead ones included."),
    gauge("fleeting_dict_dead", "Entries that failed too often."),
    counter("fleeting_dict_taken_total", "Entries that were taken for good when they were due."),
    counter("fleeting_dict_claims_total", "Claims that were given out."),
    counter("fleeting_dict_acked_total", "Claims whose work was done."),
    counter(
        "fleeting_dict_failed_total",
        "Claims that were dropped or given back, and leases that ended.",
    ),
];

/// Has a dictionary tell of itself.
pub(super) fn follow<K, V>(shared: &Arc<SharedState<K, V>>, name: &str)
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let source: Weak<SharedState<K, V>> = Arc::downgrade(shared);
    register(&SERIES, name, source, &shared.registration);
}

impl<K, V> Source for SharedState<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn read(&self, figures: &mut MetricValues) {
        let (len, dead, counts) =
            self.with(|entries| (entries.len(), entries.dead_len(), entries.counts()));
        figures.level(len as f64);
        figures.level(dead as f64);
        figures.count(counts.taken);
        figures.count(counts.claims);
        figures.count(counts.acked);
        figures.count(counts.failed);
    }
}
