//! Metrics of a limiter, for the `metrics` facade.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use super::{algorithm::Algorithm, limiter::Limiter};
#[cfg(feature = "dashboard")]
use crate::engine::metrics::DeniedKey;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

static SERIES: [Series; 7] = [
    counter("fleeting_limiter_allowed_total", "Checks that passed."),
    counter("fleeting_limiter_denied_total", "Denied checks and unsuccessful waits."),
    counter("fleeting_limiter_waited_total", "Checks that passed after a wait."),
    counter(
        "fleeting_limiter_shadowed_total",
        "Denied requests that a layer in shadow mode admitted.",
    ),
    counter("fleeting_limiter_refunded_total", "Permits that were refunded."),
    counter("fleeting_limiter_overflowed_total", "Checks of keys beyond max_keys."),
    gauge("fleeting_limiter_keys", "Keys in memory: in use, or idle and not yet swept."),
];

/// Registers a limiter as a source of metrics.
pub(super) fn register_limiter<K, A, S>(limiter: &Arc<Limiter<K, A, S>>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let source: Weak<Limiter<K, A, S>> = Arc::downgrade(limiter);
    register(&SERIES, limiter.shared.name(), source, &limiter.shared.registration);
}

impl<K, A, S> Source for Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    fn read(&self, values: &mut MetricValues) {
        let stats = self.stats();
        values.count(stats.admitted);
        values.count(stats.denied);
        values.count(stats.waited);
        values.count(stats.shadowed);
        values.count(stats.refunded);
        values.count(stats.overflowed);
        values.level(stats.keys as f64);
    }

    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        self.top_denied.read(self.shared.clock.now())
    }
}
