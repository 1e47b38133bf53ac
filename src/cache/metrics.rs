//! Export of the metrics of a cache to the `metrics` facade and the dashboard.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use super::freshness_policy::LoadCounters;
#[cfg(feature = "dashboard")]
use crate::engine::ttl::Ttl;
use crate::engine::{
    metrics::{MetricValues, Series, Source, counter, gauge, histogram, register},
    shared_state::SharedState,
};

const DEPARTURES: Series = counter("fleeting_cache_departures_total", "Values removed, by cause.");

/// Series of a cache, in the order in which `SharedState::read` writes their values.
static SERIES: [Series; 19] = [
    counter("fleeting_cache_hits_total", "Reads that found a live value."),
    counter("fleeting_cache_misses_total", "Reads that found no live value."),
    counter("fleeting_cache_misses_of_evicted_total", "Misses of recently evicted keys."),
    counter("fleeting_cache_sets_total", "Values written."),
    DEPARTURES.of("cause", "expired"),
    DEPARTURES.of("cause", "evicted"),
    DEPARTURES.of("cause", "removed"),
    DEPARTURES.of("cause", "replaced"),
    gauge("fleeting_cache_resident", "Entries in memory: live, or expired and not yet swept."),
    gauge("fleeting_cache_weight", "Total weight of the entries in memory."),
    gauge("fleeting_cache_max_weight", "Bound on the total weight, or 0 without a bound."),
    gauge(
        "fleeting_cache_staleness_seconds",
        "Upper bound on the time since the expiry of any entry in memory.",
    ),
    gauge(
        "fleeting_cache_sweep_bound_seconds",
        "Time in which sweeps examine all entries by their settings, or 0 without sweeps.",
    ),
    counter("fleeting_cache_sweep_looked_at_total", "Entries examined by sweeps."),
    histogram("fleeting_cache_sweep_seconds", "Working time of a sweep."),
    gauge("fleeting_cache_subscribers", "Event streams in use."),
    histogram(
        "fleeting_cache_event_lag_seconds",
        "Time from a value's deadline to its event, if it has a subscriber.",
    ),
    counter("fleeting_cache_events_missed_total", "Events missed by slow subscribers."),
    gauge(
        "fleeting_cache_events_overflow",
        "Unread events above the capacity of the fullest lossless stream.",
    ),
];

/// Series of the loaders, in the order in which `LoadCounters::read` writes their values.
static LOADS: [Series; 3] = [
    counter("fleeting_cache_loads_total", "Loader runs that finished."),
    counter("fleeting_cache_failed_loads_total", "Loader runs that failed."),
    histogram("fleeting_cache_load_seconds", "Duration of a loader run."),
];

/// Registers a cache and its load counters as sources of metrics. They are held weakly, so that metrics do not keep the
/// cache alive.
pub(super) fn register_cache<K, V, S>(shared: &Arc<SharedState<K, V, S>>, loads: &Arc<LoadCounters>)
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
    fn read(&self, values: &mut MetricValues) {
        let loads = self.totals();
        values.count(loads.loads);
        values.count(loads.failed);
        values.histogram(self.durations());
    }
}

impl<K, V, S> Source for SharedState<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    fn publish_events(&self) {
        self.publisher.publish_all();
    }

    fn read(&self, values: &mut MetricValues) {
        let counts = self.store.counts();
        let resident = self.store.len();
        let (lag, missed, subscribers, overflow) = self.publisher.metrics();
        values.count(counts.hits);
        values.count(counts.misses);
        values.count(counts.misses_of_evicted);
        // Every written value is either resident or was removed, so no counter of writes is needed.
        values.count(resident as u64 + counts.departures() + counts.replaced);
        values.count(counts.expired);
        values.count(counts.evicted);
        values.count(counts.removed);
        values.count(counts.replaced);
        values.level(resident as f64);
        values.level(self.store.weight() as f64);
        values.level(self.store.limit().unwrap_or(0) as f64);
        values.level(self.store.staleness(self.clock.now()).as_secs_f64());
        values.level(self.sweep().bound().unwrap_or_default().as_secs_f64());
        values.count(self.sweeps().total.looked_at);
        values.histogram(self.sweep_times());
        values.level(subscribers as f64);
        values.histogram(lag);
        values.count(missed);
        values.level(overflow as f64);
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
        // The lookup may have removed an expired value.
        self.publisher.flush();
        Some(match deadline {
            None => Ttl::Missing,
            Some(deadline) => deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining),
        })
    }
}
