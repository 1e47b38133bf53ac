//! Event streams compared with a model that has a queue per subscriber: each subscriber receives its own events in
//! order, with the right lag counts and wakes, and no value is retained that no subscriber will read.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use fleeting::{Cache, Cause, Event, Events, LosslessEvents, Sweep};
use futures::Stream;
use proptest::prelude::*;
use tokio::task::unconstrained;

use crate::sequences::config;

const CAUSES: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

type Value = Arc<u32>;

#[derive(Clone, Debug)]
enum Op {
    Subscribe,
    SubscribeLossless(usize),
    /// The second field has bits of `CAUSES`.
    Only(usize, u8),
    Read(usize),
    ReadAll(usize),
    Unsubscribe(usize),
    /// Removes a value, with this element of `CAUSES` as the cause.
    Remove(usize),
    /// Inserts this many expired values, which stay in memory.
    InsertExpired(u32),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => Just(Op::Subscribe),
        2 => (1..4_usize).prop_map(Op::SubscribeLossless),
        3 => (0..8_usize, 0..8_u8).prop_map(|(index, causes)| Op::Only(index, causes)),
        6 => (0..8_usize).prop_map(Op::Read),
        2 => (0..8_usize).prop_map(Op::ReadAll),
        2 => (0..8_usize).prop_map(Op::Unsubscribe),
        9 => (0..3_usize).prop_map(Op::Remove),
        2 => (1..6_u32).prop_map(Op::InsertExpired),
        2 => Just(Op::Sweep),
    ];
    prop::collection::vec(op, 1..60)
}

enum AnyStream {
    Broadcast(Events<u32, Value>),
    Lossless(LosslessEvents<u32, Value>),
}

struct Subscriber {
    stream: AnyStream,
    /// `None` for a broadcast stream.
    capacity: Option<usize>,
    causes: u8,
    unread: VecDeque<(u32, Cause)>,
    missed: u64,
    waits: bool,
    wakes: usize,
    woken: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct Case {
    cache: Cache<u32, Value>,
    published: u8,
    event_capacity: usize,
    subscribers: Vec<Subscriber>,
    /// All values that were ever in the cache.
    values: Vec<Weak<u32>>,
    /// Ids of those that are still resident.
    resident: Vec<u32>,
    expired: Vec<u32>,
}

proptest! {
    #![proptest_config(config(300, 13))]

    #[test]
    fn streams_agree_with_a_queue_per_subscriber(ops in ops(), published in 0..8_u8, event_capacity in 1..5_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(unconstrained(Case::run(ops, published, event_capacity)));
    }
}

impl Case {
    async fn run(ops: Vec<Op>, published: u8, event_capacity: usize) {
        let cache = Cache::builder()
            .sweep(Sweep::manual().sample(1.0))
            .publish(causes_of(published))
            .event_capacity(event_capacity)
            .build();
        let (subscribers, values) = (Vec::new(), Vec::new());
        let (resident, expired) = (Vec::new(), Vec::new());
        let mut case =
            Case { cache, published, event_capacity, subscribers, values, resident, expired };
        for op in ops {
            case.step(op).await;
            case.compare();
        }
        case.end().await;
    }

    async fn step(&mut self, op: Op) {
        let count = self.subscribers.len();
        let index = |index: usize| (count > 0).then(|| index % count);
        match op {
            Op::Subscribe => self.subscribe(AnyStream::Broadcast(self.cache.events()), None),
            Op::SubscribeLossless(capacity) => {
                let stream = self.cache.events_lossless(capacity);
                self.subscribe(AnyStream::Lossless(stream), Some(capacity));
            }
            Op::Only(subscriber, causes) => {
                if let Some(subscriber) = index(subscriber) {
                    let old = self.subscribers.swap_remove(subscriber);
                    self.subscribers.push(old.only(causes));
                }
            }
            Op::Read(subscriber) => {
                if let Some(subscriber) = index(subscriber) {
                    self.subscribers[subscriber].read();
                }
            }
            Op::ReadAll(subscriber) => {
                if let Some(subscriber) = index(subscriber) {
                    while self.subscribers[subscriber].read() {}
                }
            }
            Op::Unsubscribe(subscriber) => {
                if let Some(subscriber) = index(subscriber) {
                    drop(self.subscribers.swap_remove(subscriber));
                }
            }
            Op::Remove(cause) => self.remove(cause).await,
            Op::InsertExpired(count) => {
                for _ in 0..count {
                    let (id, value) = self.value();
                    self.cache.set_ex(id + 1, value, Duration::ZERO).await;
                    self.expired.push(id);
                }
            }
            Op::Sweep => self.sweep().await,
        }
    }

    fn subscribe(&mut self, stream: AnyStream, capacity: Option<usize>) {
        self.subscribers.push(Subscriber {
            stream,
            capacity,
            causes: self.published,
            unread: VecDeque::new(),
            missed: 0,
            waits: false,
            wakes: 0,
            woken: Arc::default(),
        });
    }

    async fn remove(&mut self, cause: usize) {
        let (id, value) = self.value();
        match CAUSES[cause] {
            Cause::Replaced => {
                let old = self.cache.set(0, value).await.map(|old| *old);
                self.resident.retain(|id| Some(*id) != old);
                self.resident.push(id);
                if let Some(old) = old {
                    self.publish(old, Cause::Replaced);
                }
            }
            Cause::Removed => {
                self.cache.set(id + 1, value).await;
                self.cache.remove(&(id + 1)).await;
                self.publish(id, Cause::Removed);
            }
            _ => {
                self.cache.set(id + 1, value).await;
                self.cache.expire_now(&(id + 1)).await;
                self.publish(id, Cause::Expired);
            }
        }
    }

    /// One window of a sweep removes as many entries as the fullest stream has capacity for.
    async fn sweep(&mut self) {
        let has_cause = |subscriber: &&Subscriber| subscriber.has_cause(Cause::Expired);
        let full = self.subscribers.iter().filter(has_cause);
        let room = full
            .filter_map(|full| Some(full.capacity?.saturating_sub(full.unread.len())))
            .min()
            .unwrap_or(usize::MAX);
        // The sweeper chooses the order, so that of a subscriber is taken. During a sweep it has capacity for all
        // events.
        let mut witness = self.cache.events_lossless(1_000_000);
        let report = self.cache.sweep().await;
        let expected = room.min(self.expired.len());
        assert_eq!(
            report.expired as usize,
            expected,
            "of {} with capacity for {room}",
            self.expired.len()
        );
        assert_eq!(report.held_back, self.expired.len() > room);
        let mut cx = Context::from_waker(Waker::noop());
        let mut published_events = Vec::new();
        while let Poll::Ready(Some(event)) = Pin::new(&mut witness).poll_next(&mut cx) {
            assert_eq!(event.cause, Cause::Expired);
            published_events.push(*event.value);
        }
        drop(witness);
        if self.published & 1 == 0 {
            assert!(published_events.is_empty(), "the cause is not published");
            let values = &self.values;
            self.expired.retain(|id| values[*id as usize].strong_count() > 0);
        }
        for id in published_events {
            self.expired.retain(|expired| *expired != id);
            self.publish(id, Cause::Expired);
        }
    }

    fn value(&mut self) -> (u32, Value) {
        let id = self.values.len() as u32;
        let value = Arc::new(id);
        self.values.push(Arc::downgrade(&value));
        (id, value)
    }

    fn publish(&mut self, id: u32, cause: Cause) {
        for subscriber in &mut self.subscribers {
            if !subscriber.has_cause(cause) {
                continue;
            }
            subscriber.unread.push_back((id, cause));
            if subscriber.capacity.is_none() && subscriber.unread.len() > self.event_capacity {
                subscriber.unread.pop_front();
                subscriber.missed += 1;
            }
            subscriber.wake();
        }
    }

    fn compare(&self) {
        for (index, subscriber) in self.subscribers.iter().enumerate() {
            let woken = subscriber.woken.0.load(Relaxed);
            assert_eq!(woken, subscriber.wakes, "subscriber {index} was woken");
            let unread = subscriber.unread.len() as u64 + subscriber.missed;
            assert!(subscriber.debug().ends_with(&format!("{{ unread: {unread} }}")));
        }
        let beyond = |it: &Subscriber| Some(it.unread.len().saturating_sub(it.capacity?));
        let overflow = self.subscribers.iter().filter_map(beyond).max();
        let stats = self.cache.stats();
        assert_eq!(stats.overflow, overflow.unwrap_or(0));
        assert_eq!(stats.subscribers, self.subscribers.len());
        for (id, value) in self.values.iter().enumerate() {
            let id = id as u32;
            let unread = |it: &Subscriber| it.unread.iter().any(|(unread, _)| *unread == id);
            let is_held = self.resident.contains(&id)
                || self.expired.contains(&id)
                || self.subscribers.iter().any(unread);
            assert_eq!(value.strong_count() > 0, is_held, "retention of value {id}");
        }
    }

    /// `shutdown` publishes due events regardless of capacity, and the streams end after them.
    async fn end(mut self) {
        // The cache chooses the order, so that of a subscriber is taken.
        let mut witness = self.cache.events_lossless(1);
        self.cache.shutdown().await;
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(event)) = Pin::new(&mut witness).poll_next(&mut cx) {
            self.publish(*event.value, event.cause);
        }
        self.subscribers.iter_mut().for_each(Subscriber::wake);
        for subscriber in &mut self.subscribers {
            while subscriber.read() {}
            assert!(!subscriber.waits, "the stream has ended");
            assert_eq!(subscriber.woken.0.load(Relaxed), subscriber.wakes);
        }
    }
}

impl Subscriber {
    fn only(self, causes: u8) -> Self {
        let stream = match self.stream {
            AnyStream::Broadcast(events) => AnyStream::Broadcast(events.only(causes_of(causes))),
            AnyStream::Lossless(events) => AnyStream::Lossless(events.only(causes_of(causes))),
        };
        let mut narrowed = Self { stream, causes: self.causes & causes, ..self };
        let causes = causes_of(narrowed.causes);
        narrowed.unread.retain(|(_, cause)| causes.contains(cause));
        narrowed
    }

    fn has_cause(&self, cause: Cause) -> bool {
        causes_of(self.causes).contains(&cause)
    }

    /// Reads an event, and returns whether there was one.
    fn read(&mut self) -> bool {
        let waker = Waker::from(self.woken.clone());
        let mut cx = Context::from_waker(&waker);
        let event = |event: Arc<Event<u32, Value>>| (*event.value, event.cause);
        let next = match &mut self.stream {
            AnyStream::Broadcast(events) => {
                Pin::new(events).poll_next(&mut cx).map(|next| next.map(|next| next.map(event)))
            }
            AnyStream::Lossless(events) => {
                Pin::new(events).poll_next(&mut cx).map(|next| next.map(|next| Ok(event(next))))
            }
        };
        let Poll::Ready(Some(next)) = next else {
            assert!(self.unread.is_empty() && self.missed == 0, "the model has unread events");
            self.waits = next.is_pending();
            return false;
        };
        match next {
            Ok(event) => {
                assert_eq!(self.missed, 0, "missed events are reported first");
                assert_eq!(Some(event), self.unread.pop_front());
            }
            Err(lagged) => assert_eq!(lagged.0, std::mem::take(&mut self.missed)),
        }
        true
    }

    fn wake(&mut self) {
        self.wakes += usize::from(std::mem::take(&mut self.waits));
    }

    fn debug(&self) -> String {
        match &self.stream {
            AnyStream::Broadcast(events) => format!("{events:?}"),
            AnyStream::Lossless(events) => format!("{events:?}"),
        }
    }
}

fn causes_of(causes: u8) -> Vec<Cause> {
    let bits = CAUSES.into_iter().enumerate();
    bits.filter(|(bit, _)| causes & 1 << bit != 0).map(|(_, cause)| cause).collect()
}
