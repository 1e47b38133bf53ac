//! What a cache tells of itself to the `metrics` facade.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use super::freshness_policy::LoadCounters;
#[cfg(feature = "dashboard")]
use crate::engine::ttl::Ttl;
use crate::engine::{
    metrics::{MetricValues, Series, Source, counter, gauge, histogram, register},
    state::SharedState,
};

const DEPARTURES: Series =
    counter("fleeting_cache_departures_total", "Values that left, by cause.");

static SERIES: [Series; 17] = [
    counter("fleeting_cache_hits_total", "Reads that found a live value."),
    counter("fleeting_cache_misses_total", "Reads that found none."),
    counter("fleeting_cache_misses_of_evicted_total", "Misses of keys that were evicted lately."),
    counter("fleeting_cache_sets_total", "Values that came."),
    DEPARTURES.of("cause", "expired"),
    DEPARTURES.of("cause", "evicted"),
    DEPARTURES.of("cause", "removed"),
    DEPARTURES.of("cause", "replaced"),
    gauge("fleeting_cache_resident", "Entries in memory: live, or dead and not yet swept."),
    gauge("fleeting_cache_weight", "What they weigh together."),
    gauge(
        "fleeting_cache_staleness_seconds",
        "For how long something dead may be in memory, at most.",
    ),
    counter("fleeting_cache_sweep_looked_at_total", "Entries that sweeps looked at."),
    histogram("fleeting_cache_sweep_seconds", "How long a sweep worked."),
    gauge("fleeting_cache_subscribers", "Streams of events that somebody holds."),
    histogram(
        "fleeting_cache_event_lag_seconds",
        "From a value's deadline to its event, where somebody hears of it.",
    ),
    counter("fleeting_cache_events_missed_total", "Events that slow subscribers missed."),
    gauge(
        "fleeting_cache_events_overflow",
        "Events beyond the capacity of the fullest lossless stream.",
    ),
];

static LOADS: [Series; 3] = [
    counter("fleeting_cache_loads_total", "Loaders that ran to their end."),
    counter("fleeting_cache_failed_loads_total", "Of these, those that failed."),
    histogram("fleeting_cache_load_seconds", "How long a loader took."),
];

/// Has a cache tell of itself.
pub(super) fn follow<K, V, S>(shared: &Arc<SharedState<K, V, S>>, loads: &Arc<LoadCounters>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let source: Weak<SharedState<K, V, S>> = Arc::downgrade(shared);
    register(&SERIES, shared.name(), source, &shared.registration);
    let source: Weak<LoadCounters> = Arc::downgrade(loads);
    register(&LOADS, shared.name(), source, &loads.registration);
}

impl Source for LoadCounters {
    fn read(&self, figures: &mut MetricValues) {
        let loads = self.all();
        figures.count(loads.loads);
        figures.count(loads.failed);
        figures.histogram(self.times());
    }
}

impl<K, V, S> Source for SharedState<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    fn read(&self, figures: &mut MetricValues) {
        let counts = self.store.counts();
        let resident = self.store.len();
        let (lag, missed, subscribers, overflow) = self.publisher.figures();
        figures.count(counts.hits);
        figures.count(counts.misses);
        figures.count(counts.misses_of_evicted);
        // Each that came is here or has left.
        figures.count(resident as u64 + counts.departures() + counts.replaced);
        figures.count(counts.expired);
        figures.count(counts.evicted);
        figures.count(counts.removed);
        figures.count(counts.replaced);
        figures.level(resident as f64);
        figures.level(self.store.weight() as f64);
        figures.level(self.store.staleness(self.clock.now()).as_secs_f64());
        figures.count(self.sweeps().total.looked_at);
        figures.histogram(self.sweep_times());
        figures.level(subscribers as f64);
        figures.histogram(lag);
        figures.count(missed);
        figures.level(overflow as f64);
    }

    #[cfg(feature = "dashboard")]
    fn may_be_searched(&self) -> bool {
        self.inspect.get().is_some()
    }

    #[cfg(feature = "dashboard")]
    fn ttl_of(&self, text: &str) -> Option<Ttl> {
        let key = self.inspect.get()?(text)?;
        let now = self.clock.now();
        let deadline = self.store.deadline(&key, &now);
        self.publisher.flush();
        Some(match deadline {
            None => Ttl::Missing,
            Some(deadline) => deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining),
        })
    }
}
