//! Metrics of a limiter on Redis, exported through the `metrics` facade. They cover the calls of this process.

use std::sync::{Arc, Weak};

use super::{breaker::Breaker, limiter_state::LimiterState};
#[cfg(feature = "dashboard")]
use crate::engine::metrics::DeniedKey;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

const BREAKER: Series = gauge(
    "fleeting_redis_limiter_breaker",
    "State of the circuit breaker: 1 for the current state.",
);

static SERIES: [Series; 14] = [
    counter("fleeting_redis_limiter_allowed_total", "Checks that passed."),
    counter(
        "fleeting_redis_limiter_denied_total",
        "Checks that were denied, and waits that ended without admission.",
    ),
    counter(
        "fleeting_redis_limiter_denied_locally_total",
        "Denied checks that were answered without a round trip.",
    ),
    counter("fleeting_redis_limiter_waited_total", "Checks that passed after waiting."),
    counter(
        "fleeting_redis_limiter_shadowed_total",
        "Checks that were admitted only because a layer is in shadow mode.",
    ),
    counter("fleeting_redis_limiter_refunded_total", "Permits that were refunded."),
    counter("fleeting_redis_limiter_errors_total", "Calls that failed or got no reply."),
    counter(
        "fleeting_redis_limiter_by_policy_total",
        "Checks that were decided by the error policy, as the server failed.",
    ),
    counter(
        "fleeting_redis_limiter_reserved_total",
        "Units that were drawn from the server ahead of their checks.",
    ),
    counter(
        "fleeting_redis_limiter_returned_total",
        "Reserved units that were not used and were given back.",
    ),
    counter(
        "fleeting_redis_limiter_lapsed_total",
        "Reserved units that were not used and could not be given back.",
    ),
    BREAKER.of("state", "closed"),
    BREAKER.of("state", "open"),
    BREAKER.of("state", "half_open"),
];

/// Registers the metrics of a limiter.
pub(super) fn follow(limiter: &Arc<LimiterState>) {
    let source: Weak<LimiterState> = Arc::downgrade(limiter);
    register(&SERIES, &limiter.name, source, &limiter.registration);
}

impl Source for LimiterState {
    fn read(&self, values: &mut MetricValues) {
        let stats = self.counters.snapshot(self.breaker.state());
        values.count(stats.admitted);
        values.count(stats.denied);
        values.count(stats.denied_locally);
        values.count(stats.waited);
        values.count(stats.shadowed);
        values.count(stats.refunded);
        values.count(stats.errors);
        values.count(stats.by_policy);
        values.count(stats.reserved);
        values.count(stats.returned);
        values.count(stats.lapsed);
        for state in [Breaker::Closed, Breaker::Open, Breaker::HalfOpen] {
            values.level(f64::from(u8::from(stats.breaker == state)));
        }
    }

    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        self.top_denied.read()
    }
}
