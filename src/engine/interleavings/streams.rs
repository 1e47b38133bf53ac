//! The streams alone: departures from two shards, whose values show whether any part of the streams still holds them.

use std::{
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_core::Stream;
use shuttle::{sync::Mutex, thread};

use super::{explore, spawn};
use crate::engine::{
    clock::{Clock, Tick},
    event::{Cause, Events, LosslessEvents, Publisher},
    store::{Departure, Journal},
};

type Value = Arc<u32>;

struct Streams {
    journal: Arc<Journal<usize, Value>>,
    publisher: Arc<Publisher<usize, Value>>,
    clock: Clock,
    /// For each shard its lock, and the number of departures from it.
    shards: [Mutex<u32>; 2],
    values: std::sync::Mutex<Vec<Weak<u32>>>,
}

/// The shard, the number of the departure in it, and its cause.
type Received = (usize, u32, Cause);

impl Streams {
    fn new(ring: usize) -> Arc<Self> {
        let (journal, clock) = (Arc::new(Journal::new()), Clock::new());
        let causes = Cause::Removed.bit() | Cause::Replaced.bit();
        let publisher = Arc::new(Publisher::new(journal.clone(), clock.clone(), causes, ring));
        let (shards, values) = (Default::default(), Default::default());
        Arc::new(Self { journal, publisher, clock, shards, values })
    }

    fn lossless(&self) -> LosslessEvents<usize, Value> {
        LosslessEvents::new(&self.publisher, 100)
    }

    /// Records the next departure of a shard: alternately removed and replaced.
    fn depart(&self, shard: usize) {
        let mut number = self.shards[shard].lock().unwrap();
        let value = Arc::new(*number);
        self.values.lock().unwrap().push(Arc::downgrade(&value));
        let cause = [Cause::Removed, Cause::Replaced][*number as usize % 2];
        let at: Tick = self.clock.now();
        let departure =
            Departure { key: shard, value, cause, deadline: at.into(), at, waiters: None };
        *number += 1;
        let unrecorded = self.journal.record(shard, departure);
        drop(number);
        drop(unrecorded);
        self.publisher.flush();
    }

    fn kept_events(&self) -> usize {
        self.values.lock().unwrap().iter().filter(|value| value.strong_count() > 0).count()
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Returns the events received so far; at their end the stream waits with this waker.
fn drain(events: &mut LosslessEvents<usize, Value>, wakes: &Arc<Wakes>) -> Vec<Received> {
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let mut received = Vec::new();
    while let Poll::Ready(Some(event)) = Pin::new(&mut *events).poll_next(&mut cx) {
        received.push((event.key, *event.value, event.cause));
    }
    received
}

fn depart_all(streams: &Arc<Streams>, count: usize) -> [thread::JoinHandle<()>; 2] {
    [0, 1]
        .map(|shard| spawn(streams, move |streams| (0..count).for_each(|_| streams.depart(shard))))
}

/// Checks that the numbers received from each shard are consecutive, except for those that `is_subscribed` excludes.
fn check_order(received: &[Received], is_subscribed: impl Fn(u32) -> bool, all: bool) {
    for shard in 0..2 {
        let numbers =
            received.iter().filter(|(from, ..)| *from == shard).map(|(_, number, _)| *number);
        let numbers: Vec<u32> = numbers.collect();
        let Some(first) = numbers.first().copied() else { continue };
        let expected = (if all { 0 } else { first }..).filter(|number| is_subscribed(*number));
        assert!(expected.take(numbers.len()).eq(numbers.iter().copied()), "{received:?}");
    }
}

/// Two readers of one channel reach the last event at the same time as new ones come: each receives all of them once,
/// in order. When both have read an event, it is dropped; and a reader that waits while there is an event was woken.
#[test]
fn two_readers_receive_all_events_once_and_in_order() {
    explore(|| {
        let streams = Streams::new(100);
        let read = |streams: &Arc<Streams>| {
            let mut events = streams.lossless();
            spawn(streams, move |_| {
                let wakes = Arc::default();
                let mut all = drain(&mut events, &wakes);
                thread::yield_now();
                let before = wakes.0.load(SeqCst);
                let more = drain(&mut events, &wakes);
                all.extend(more);
                (events, wakes, before, all)
            })
        };
        let readers = [read(&streams), read(&streams)];
        let writers = depart_all(&streams, 5);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let readers = readers.map(|reader| reader.join().unwrap());
        let ended = readers.map(|(mut events, wakes, _, mut all)| {
            let woken = wakes.0.load(SeqCst);
            let rest = drain(&mut events, &Arc::default());
            assert!(rest.is_empty() || woken > 0, "it was not woken for {rest:?}");
            all.extend(rest);
            assert_eq!(all.len(), 10);
            check_order(&all, |_| true, true);
            events
        });
        assert_eq!(streams.kept_events(), 0, "both have read all events");
        drop(ended);
    });
}

/// A reader that waits is woken by the next event, however many threads write.
#[test]
fn waiting_reader_is_woken_under_contention() {
    explore(|| {
        let streams = Streams::new(100);
        let mut events = streams.lossless();
        let reader = spawn(&streams, move |_| {
            let mut all = Vec::new();
            for _ in 0..4 {
                let wakes = Arc::default();
                all.extend(drain(&mut events, &wakes));
                thread::yield_now();
                if all.len() < 12 && wakes.0.load(SeqCst) == 0 {
                    return (events, wakes, all);
                }
            }
            let wakes = Arc::default();
            all.extend(drain(&mut events, &wakes));
            (events, wakes, all)
        });
        let writers = depart_all(&streams, 6);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let (mut events, wakes, mut all) = reader.join().unwrap();
        let woken = wakes.0.load(SeqCst);
        let rest = drain(&mut events, &Arc::default());
        assert!(rest.is_empty() || woken == 1, "woken {woken} times for {rest:?}");
        all.extend(rest);
        assert_eq!(all.len(), 12);
        check_order(&all, |_| true, true);
    });
}

/// The same if departures are being collected in the journal already, and the last one comes as the reader begins to
/// wait.
#[test]
fn waiting_reader_is_woken_by_the_last_event() {
    explore(|| {
        let streams = Streams::new(100);
        let mut events = streams.lossless();
        streams.journal.note_contention();
        streams.depart(0);
        assert_eq!(drain(&mut events, &Arc::default()).len(), 1);
        let reader = spawn(&streams, move |_| {
            let wakes = Arc::default();
            let all = drain(&mut events, &wakes);
            (events, wakes, all.len())
        });
        let writer = spawn(&streams, |streams| streams.depart(0));
        writer.join().unwrap();
        let (mut events, wakes, read) = reader.join().unwrap();
        let woken = wakes.0.load(SeqCst);
        assert_eq!((read, woken), if read == 1 { (1, 0) } else { (0, 1) });
        assert_eq!(drain(&mut events, &wakes).len(), 1 - read);
    });
}

/// Readers subscribe, limit their causes and leave during departures: each receives its own events, and others keep
/// theirs.
#[test]
fn only_affects_no_other_subscriber() {
    explore(|| {
        let streams = Streams::new(2);
        let mut witness = streams.lossless();
        let is_subscribed = |number: u32| number % 2 == 1;
        let narrowing = spawn(&streams, move |streams| {
            let mut wide = streams.lossless();
            let mut early = streams.lossless().only([Cause::Replaced]);
            thread::yield_now();
            let mut all = Vec::new();
            let waker = Waker::noop();
            if let Poll::Ready(Some(event)) =
                Pin::new(&mut wide).poll_next(&mut Context::from_waker(waker))
            {
                all.extend(is_subscribed(*event.value).then_some((
                    event.key,
                    *event.value,
                    event.cause,
                )));
            }
            let mut late = wide.only([Cause::Replaced]);
            thread::yield_now();
            all.extend(drain(&mut late, &Arc::default()));
            let early = drain(&mut early, &Arc::default());
            (early, all)
        });
        let leaving = spawn(&streams, |streams| {
            let ring = Events::new(&streams.publisher);
            thread::yield_now();
            drop(ring.only([Cause::Removed]));
        });
        let writers = depart_all(&streams, 4);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let (early, late) = narrowing.join().unwrap();
        leaving.join().unwrap();
        check_order(&early, is_subscribed, false);
        check_order(&late, is_subscribed, false);
        let all = drain(&mut witness, &Arc::default());
        assert_eq!(all.len(), 8);
        check_order(&all, |_| true, true);
        assert_eq!(streams.kept_events(), 0, "no reader is left for them");
    });
}

/// In a ring, the received and the missed events are all events since the subscription, and no others are kept.
#[test]
fn ring_reader_receives_or_misses_every_event() {
    explore(|| {
        let streams = Streams::new(2);
        let mut events = Events::new(&streams.publisher);
        let mut read = move || {
            let (mut all, mut missed) = (Vec::new(), 0);
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(next)) = Pin::new(&mut events).poll_next(&mut cx) {
                match next {
                    Ok(event) => all.push((event.key, *event.value, event.cause)),
                    Err(lagged) => missed += lagged.0,
                }
            }
            (all, missed)
        };
        let writers = depart_all(&streams, 5);
        let reader = spawn(&streams, move |_| {
            let before = read();
            thread::yield_now();
            (read, before)
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let (mut read, (mut all, mut missed)) = reader.join().unwrap();
        let (rest, more) = read();
        all.extend(rest);
        missed += more;
        assert_eq!(all.len() as u64 + missed, 10);
        for shard in 0..2 {
            let numbers = all.iter().filter(|(from, ..)| *from == shard);
            let numbers: Vec<u32> = numbers.map(|(_, number, _)| *number).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{all:?}");
        }
        assert_eq!(streams.kept_events(), 0, "each is read or missed");
    });
}

/// The last subscriber leaves, or the streams end, during writes: no event is kept without a reader.
#[test]
fn no_event_is_kept_after_the_last_subscriber_left() {
    explore(|| {
        let streams = Streams::new(2);
        let events = streams.lossless();
        let other = Events::new(&streams.publisher);
        let leaving = spawn(&streams, move |_| {
            drop(other);
            thread::yield_now();
            drop(events);
        });
        let ends = spawn(&streams, |streams| {
            let events = streams.lossless();
            thread::yield_now();
            streams.publisher.close();
            drop(events);
        });
        let writers = depart_all(&streams, 5);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        leaving.join().unwrap();
        ends.join().unwrap();
        assert_eq!(streams.kept_events(), 0, "no reader is left for them");
    });
}

/// The same if departures are being collected in the journal already, and the last one comes as the last subscriber
/// leaves.
#[test]
fn no_event_is_kept_if_the_last_subscriber_leaves_during_a_write() {
    explore(|| {
        let streams = Streams::new(100);
        let events = streams.lossless();
        streams.journal.note_contention();
        streams.depart(0);
        let leaving = spawn(&streams, move |_| drop(events));
        let writer = spawn(&streams, |streams| streams.depart(0));
        writer.join().unwrap();
        leaving.join().unwrap();
        assert_eq!(streams.kept_events(), 0, "no reader is left for them");
    });
}
