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
    counter("fleeting_limiter_denied_total", "Checks that did not, and waits that were in vain."),
    counter("fleeting_limiter_waited_total", "Of those that passed, how many had to wait."),
    counter("fleeting_limiter_shadowed_total", "Of those denied, how many a shadow let pass."),
    counter("fleeting_limiter_refunded_total", "Permits that were given back."),
    counter("fleeting_limiter_overflowed_total", "Checks of keys beyond the bound on keys."),
    gauge("fleeting_limiter_keys", "Keys in memory: in use, or idle and not yet swept."),
];

/// Registers a limiter as a source of metrics.
pub(super) fn follow<K, A, S>(limiter: &Arc<Limiter<K, A, S>>)
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
    fn read(&self, figures: &mut MetricValues) {
        let stats = self.stats();
        figures.count(stats.admitted);
        figures.count(stats.denied);
        figures.count(stats.waited);
        figures.count(stats.shadowed);
        figures.count(stats.refunded);
        figures.count(stats.overflowed);
        figures.level(stats.keys as f64);
    }

    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        self.top_denied.read(self.shared.clock.now())
    }
}
