//! Metrics of a client, exported through the `metrics` facade.

use std::sync::{Arc, Weak};

use super::counters::ClientCounters;
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, register};

static SERIES: [Series; 5] = [
    counter(
        "fleeting_redis_client_commands_total",
        "Attempts to send a command, including retries.",
    ),
    counter(
        "fleeting_redis_client_failures_total",
        "Attempts that reached no server or got no reply.",
    ),
    counter(
        "fleeting_redis_client_reconnects_total",
        "Recoveries: replies after a failed attempt.",
    ),
    gauge(
        "fleeting_redis_client_unreachable",
        "Servers that were unreachable for a whole timeout, so that calls fail immediately.",
    ),
    gauge(
        "fleeting_redis_client_unreachable_seconds",
        "Time for which the first of them has been unreachable, or 0.",
    ),
];

/// Registers the metrics of a client, labelled with the prefix of its keys, as a client has no name.
pub(super) fn follow(prefix: &str, counters: &Arc<ClientCounters>) {
    let source: Weak<ClientCounters> = Arc::downgrade(counters);
    register(&SERIES, prefix, source, &counters.registration);
}

impl Source for ClientCounters {
    fn read(&self, values: &mut MetricValues) {
        let [commands, failures, reconnects] = self.get();
        values.count(commands);
        values.count(failures);
        values.count(reconnects);
        let (unreachable, longest) = self.outages();
        values.level(unreachable as f64);
        values.level(longest.as_secs_f64());
    }
}
