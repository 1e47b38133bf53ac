//! What a limiter on a server tells of itself to the `metrics` facade: what this process has seen of it.

use std::sync::{Arc, Weak};

use super::{breaker::Breaker, state::LimiterState};
#[cfg(feature = "dashboard")]
use crate::engine::metrics::DeniedKey;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

const BREAKER: Series = gauge(
    "fleeting_redis_limiter_breaker",
    "Whether the server is asked: 1 for the state that it is in.",
);

static SERIES: [Series; 11] = [
    counter("fleeting_redis_limiter_allowed_total", "Checks that passed."),
    counter(
        "fleeting_redis_limiter_denied_total",
        "Checks that did not, and waits that were in vain.",
    ),
    counter(
        "fleeting_redis_limiter_denied_locally_total",
        "Of these, those for which no server was asked.",
    ),
    counter("fleeting_redis_limiter_waited_total", "Of those that passed, how many had to wait."),
    counter(
        "fleeting_redis_limiter_shadowed_total",
        "Of those denied, how many a shadow let pass.",
    ),
    counter("fleeting_redis_limiter_refunded_total", "Permits that were given back."),
    counter(
        "fleeting_redis_limiter_errors_total",
        "Calls to which the server gave no answer, or a failure.",
    ),
    counter(
        "fleeting_redis_limiter_by_policy_total",
        "Checks that were decided without the server, as it failed.",
    ),
    BREAKER.of("state", "closed"),
    BREAKER.of("state", "open"),
    BREAKER.of("state", "half_open"),
];

/// Has a limiter tell of itself.
pub(super) fn follow(limiter: &Arc<LimiterState>) {
    let source: Weak<LimiterState> = Arc::downgrade(limiter);
    register(&SERIES, &limiter.name, source, &limiter.registration);
}

impl Source for LimiterState {
    fn read(&self, figures: &mut MetricValues) {
        let stats = self.counters.snapshot(self.breaker.state());
        figures.count(stats.admitted);
        figures.count(stats.denied);
        figures.count(stats.denied_locally);
        figures.count(stats.waited);
        figures.count(stats.shadowed);
        figures.count(stats.refunded);
        figures.count(stats.errors);
        figures.count(stats.by_policy);
        for state in [Breaker::Closed, Breaker::Open, Breaker::HalfOpen] {
            figures.level(f64::from(u8::from(stats.breaker == state)));
        }
    }

    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        self.hot.read()
    }
}
