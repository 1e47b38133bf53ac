//! Export of a cache's counters in this process to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::stats::Counters;
use crate::engine::metrics::{MetricValues, Series, Source, counter, register};

static SERIES: [Series; 7] = [
    counter("fleeting_redis_cache_hits_total", "Reads that found a live value."),
    counter("fleeting_redis_cache_misses_total", "Reads that found no live value."),
    counter("fleeting_redis_cache_events_total", "Expirations received by this process."),
    counter("fleeting_redis_cache_events_missed_total", "Expirations that subscribers missed."),
    counter("fleeting_redis_cache_near_hits_total", "Reads that were answered in this process."),
    counter("fleeting_redis_cache_invalidations_total", "Changes of keys reported by servers."),
    counter("fleeting_redis_cache_bypassed_total", "Answers that could not be cached near."),
];

/// Registers a cache for the export.
pub(super) fn register_cache(name: &str, counters: &Arc<Counters>) {
    let source: Weak<Counters> = Arc::downgrade(counters);
    register(&SERIES, name, source, &counters.registration);
}

impl Source for Counters {
    fn read(&self, values: &mut MetricValues) {
        let stats = self.snapshot();
        values.count(stats.hits);
        values.count(stats.misses);
        values.count(stats.events);
        values.count(stats.missed);
        values.count(stats.near_hits);
        values.count(stats.invalidations);
        values.count(stats.bypassed);
    }
}
