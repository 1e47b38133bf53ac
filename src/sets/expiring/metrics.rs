//! What sets tell of themselves to the `metrics` facade.

use std::sync::{Arc, Weak};

use super::{shard::Shard, state::StateOf};
use crate::engine::metrics::{MetricValues, Series, Source, counter, gauge, histogram, register};

static SERIES: [Series; 6] = [
    gauge("fleeting_set_resident", "Members in memory; of `ExpiringSets`, its sets."),
    counter("fleeting_set_expired_total", "Members whose time ran out and that have left."),
    gauge("fleeting_set_subscribers", "Streams of events that somebody holds."),
    histogram(
        "fleeting_set_event_lag_seconds",
        "From a member's death to its event, where somebody hears of it.",
    ),
    counter("fleeting_set_events_missed_total", "Events that slow subscribers missed."),
    gauge(
        "fleeting_set_events_overflow",
        "Events beyond the capacity of the fullest lossless stream.",
    ),
];

/// Has sets tell of themselves.
pub(super) fn follow<S: Shard>(state: &Arc<StateOf<S>>) {
    let source: Weak<StateOf<S>> = Arc::downgrade(state);
    register(&SERIES, state.name(), source, &state.registration);
}

impl<S: Shard> Source for StateOf<S> {
    fn read(&self, figures: &mut MetricValues) {
        let (lag, missed, subscribers, overflow) = self.publisher.figures();
        let resident = (0..self.shard_count()).map(|shard| self.look(shard, S::len)).sum::<usize>();
        figures.level(resident as f64);
        figures.count(self.expired());
        figures.level(subscribers as f64);
        figures.histogram(lag);
        figures.count(missed);
        figures.level(overflow as f64);
    }
}
