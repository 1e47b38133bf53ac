//! Metrics of expiring sets for the `metrics` facade.

use std::sync::{Arc, Weak};

use super::{expiring_state::StateOf, shard::SetShard};
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, histogram, register};

static SERIES: [Series; 7] = [
    gauge("fleeting_set_resident", "Resident members; for `ExpiringSets`, its sets."),
    counter("fleeting_set_expired_total", "Members removed because they expired."),
    gauge(
        "fleeting_set_sweep_bound_seconds",
        "Time after which the sweeper removes an expired member by its settings.",
    ),
    gauge("fleeting_set_subscribers", "Open event streams."),
    histogram(
        "fleeting_set_event_lag_seconds",
        "Time from a member's deadline to its event, if it has a subscriber.",
    ),
    counter("fleeting_set_events_missed_total", "Events that slow subscribers missed."),
    gauge(
        "fleeting_set_events_overflow",
        "Unread events beyond the capacity of the lossless stream that has most of them.",
    ),
];

/// Registers the metrics of a set, or of keyed sets.
pub(super) fn follow<S: SetShard>(state: &Arc<StateOf<S>>) {
    let source: Weak<StateOf<S>> = Arc::downgrade(state);
    register(&SERIES, state.name(), source, &state.registration);
}

impl<S: SetShard> Source for StateOf<S> {
    fn publish_events(&self) {
        self.publisher.publish_all();
    }

    fn read(&self, values: &mut MetricValues) {
        let (lag, missed, subscribers, overflow) = self.publisher.metrics();
        let resident =
            (0..self.shard_count()).map(|shard| self.read_shard(shard, S::len)).sum::<usize>();
        values.level(resident as f64);
        values.count(self.expired());
        values.level(self.sweep_every.as_secs_f64());
        values.level(subscribers as f64);
        values.histogram(lag);
        values.count(missed);
        values.level(overflow as f64);
    }
}
