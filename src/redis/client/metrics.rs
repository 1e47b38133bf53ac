//! What a client tells of itself to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::counters::ClientCounters;
use crate::engine::metrics::{MetricValues, Series, Source, counter, register};

static SERIES: [Series; 3] = [
    counter("fleeting_redis_client_commands_total", "Commands that were sent, each try counted."),
    counter(
        "fleeting_redis_client_failures_total",
        "Of these, those that came to no server, or to no answer.",
    ),
    counter(
        "fleeting_redis_client_reconnects_total",
        "Times that a server answered again after it had not.",
    ),
];

/// Has a client tell of itself: by the prefix of its keys, as it has no name.
pub(super) fn follow(prefix: &str, counters: &Arc<ClientCounters>) {
    let source: Weak<ClientCounters> = Arc::downgrade(counters);
    register(&SERIES, prefix, source, &counters.registration);
}

impl Source for ClientCounters {
    fn read(&self, figures: &mut MetricValues) {
        let [commands, failures, reconnects] = self.get();
        figures.count(commands);
        figures.count(failures);
        figures.count(reconnects);
    }
}
