//! Streams of the compared cache: one that is read after each call, and slow ones, which must yield the same events.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use fleeting::{Cache, Cause, Event, Events, LosslessEvents};
use tokio::{task::unconstrained, time::Instant};

use super::time;
use crate::oracle::{self, Key, Record, Value};

/// Capacity of a lossless stream that no sequence fills.
const ENOUGH: usize = 1 << 20;

pub(super) struct Streams {
    /// Read after each call: it shows which entries the sweeper and the bound removed.
    lossless: LosslessEvents<Key, Value>,
    /// Streams that are read rarely, with the events that they have not yet returned.
    events: (Events<Key, Value>, VecDeque<Record>),
    slow: Option<(LosslessEvents<Key, Value>, VecDeque<Record>)>,
    event_capacity: usize,
    slow_capacity: usize,
    /// Time at which the cache was built.
    start: Instant,
}

impl Streams {
    pub(super) fn new(
        cache: &Cache<Key, Value>,
        event_capacity: usize,
        slow: Option<usize>,
    ) -> Self {
        Self {
            slow: slow.map(|capacity| (cache.events_lossless(capacity), VecDeque::new())),
            lossless: cache.events_lossless(ENOUGH),
            events: (cache.events(), VecDeque::new()),
            event_capacity,
            slow_capacity: slow.unwrap_or(0),
            start: Instant::now(),
        }
    }

    /// Returns the events since the last call.
    pub(super) fn received(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        while let Some(event) = now(self.lossless.recv()).flatten() {
            assert_eq!(event.at, Instant::now());
            let record = self.record(&event);
            self.events.1.push_back(record);
            if let Some((_, pending)) = &mut self.slow {
                pending.push_back(record);
            }
            records.push(record);
        }
        records
    }

    /// Returns the number of events above the capacity of the slow lossless stream.
    pub(super) fn overflow(&self) -> usize {
        let waiting = self.slow.as_ref().map_or(0, |(_, pending)| pending.len());
        waiting.saturating_sub(self.slow_capacity)
    }

    pub(super) fn has_slow(&self) -> bool {
        self.slow.is_some()
    }

    pub(super) fn drop_slow(&mut self) {
        self.slow = None;
    }

    pub(super) fn read_slow(&mut self) {
        let start = self.start;
        let (events, pending) = &mut self.events;
        let missed = pending.len().saturating_sub(self.event_capacity);
        if missed > 0 {
            let lagged = now(events.recv()).flatten();
            assert_eq!(lagged.and_then(Result::err).map(|lagged| lagged.0), Some(missed as u64));
        }
        for expected in pending.drain(..).skip(missed) {
            let event = now(events.recv()).flatten().expect("an event is pending");
            assert_eq!(record(start, &event.expect("the event was not missed")), expected);
        }
        if let Some((slow, pending)) = &mut self.slow {
            for expected in pending.drain(..) {
                let event = now(slow.recv()).flatten().expect("the stream is lossless");
                assert_eq!(record(start, &event), expected);
            }
        }
    }

    /// Reads the remaining events. Then all streams must have ended.
    pub(super) async fn end(mut self) {
        self.read_slow();
        assert!(self.lossless.recv().await.is_none() && self.events.0.recv().await.is_none());
        if let Some((slow, _)) = &mut self.slow {
            assert!(slow.recv().await.is_none());
        }
    }

    pub(super) fn record(&self, event: &Arc<Event<Key, Value>>) -> Record {
        record(self.start, event)
    }
}

fn record(start: Instant, event: &Event<Key, Value>) -> Record {
    let deadline = event.deadline.map(|deadline| time(start, deadline));
    Record { key: event.key, value: event.value, cause: cause(event.cause), deadline }
}

pub(super) fn cause(cause: Cause) -> oracle::Cause {
    match cause {
        Cause::Expired => oracle::Cause::Expired,
        Cause::Evicted => oracle::Cause::Evicted,
        Cause::Removed => oracle::Cause::Removed,
        Cause::Replaced => oracle::Cause::Replaced,
        other => panic!("unexpected cause {other:?}"),
    }
}

/// Returns the output of a future that is ready at its first poll.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let future = pin!(unconstrained(future));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
