//! The streams beside a naive queue for each subscriber: whatever is subscribed, narrowed, read, dropped and told,
//! each hears its own, in order, with the counts and the wakes that are its own; and no value is kept that
//! nobody will read.

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
    /// Bits of `CAUSES`.
    Only(usize, u8),
    Read(usize),
    ReadAll(usize),
    Unsubscribe(usize),
    /// A departure by a verb, of this one of `CAUSES`.
    Leave(usize),
    /// So many die, and stay in memory.
    Die(u32),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => Just(Op::Subscribe),
        2 => (1..4_usize).prop_map(Op::SubscribeLossless),
        3 => (0..8_usize, 0..8_u8).prop_map(|(who, causes)| Op::Only(who, causes)),
        6 => (0..8_usize).prop_map(Op::Read),
        2 => (0..8_usize).prop_map(Op::ReadAll),
        2 => (0..8_usize).prop_map(Op::Unsubscribe),
        9 => (0..3_usize).prop_map(Op::Leave),
        2 => (1..6_u32).prop_map(Op::Die),
        2 => Just(Op::Sweep),
    ];
    prop::collection::vec(op, 1..60)
}

enum Heard {
    Ring(Events<u32, Value>),
    Lossless(LosslessEvents<u32, Value>),
}

struct Subscriber {
    stream: Heard,
    /// `None` where it is not lossless.
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
    ring: usize,
    subscribers: Vec<Subscriber>,
    /// Every value that ever was in the cache.
    values: Vec<Weak<u32>>,
    /// Which of them are there still.
    resident: Vec<u32>,
    dead: Vec<u32>,
}

proptest! {
    #![proptest_config(config(300, 13))]

    #[test]
    fn agrees_with_a_queue_for_each(ops in ops(), published in 0..8_u8, ring in 1..5_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(unconstrained(Case::run(ops, published, ring)));
    }
}

impl Case {
    async fn run(ops: Vec<Op>, published: u8, ring: usize) {
        let cache = Cache::builder()
            .sweep(Sweep::manual().sample(1.0))
            .publish(named(published))
            .event_capacity(ring)
            .build();
        let (subscribers, values) = (Vec::new(), Vec::new());
        let (resident, dead) = (Vec::new(), Vec::new());
        let mut case = Case { cache, published, ring, subscribers, values, resident, dead };
        for op in ops {
            case.step(op).await;
            case.compare();
        }
        case.end().await;
    }

    async fn step(&mut self, op: Op) {
        let count = self.subscribers.len();
        let who = |who: usize| (count > 0).then(|| who % count);
        match op {
            Op::Subscribe => self.subscribe(Heard::Ring(self.cache.events()), None),
            Op::SubscribeLossless(capacity) => {
                let stream = self.cache.events_lossless(capacity);
                self.subscribe(Heard::Lossless(stream), Some(capacity));
            }
            Op::Only(subscriber, causes) => {
                if let Some(subscriber) = who(subscriber) {
                    let old = self.subscribers.swap_remove(subscriber);
                    self.subscribers.push(old.only(causes));
                }
            }
            Op::Read(subscriber) => {
                if let Some(subscriber) = who(subscriber) {
                    self.subscribers[subscriber].read();
                }
            }
            Op::ReadAll(subscriber) => {
                if let Some(subscriber) = who(subscriber) {
                    while self.subscribers[subscriber].read() {}
                }
            }
            Op::Unsubscribe(subscriber) => {
                if let Some(subscriber) = who(subscriber) {
                    drop(self.subscribers.swap_remove(subscriber));
                }
            }
            Op::Leave(cause) => self.leave(cause).await,
            Op::Die(count) => {
                for _ in 0..count {
                    let (id, value) = self.value();
                    self.cache.set_ex(id + 1, value, Duration::ZERO).await;
                    self.dead.push(id);
                }
            }
            Op::Sweep => self.sweep().await,
        }
    }

    fn subscribe(&mut self, stream: Heard, capacity: Option<usize>) {
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

    async fn leave(&mut self, cause: usize) {
        let (id, value) = self.value();
        match CAUSES[cause] {
            Cause::Replaced => {
                let old = self.cache.set(0, value).await.map(|old| *old);
                self.resident.retain(|id| Some(*id) != old);
                self.resident.push(id);
                if let Some(old) = old {
                    self.tell(old, Cause::Replaced);
                }
            }
            Cause::Removed => {
                self.cache.set(id + 1, value).await;
                self.cache.remove(&(id + 1)).await;
                self.tell(id, Cause::Removed);
            }
            _ => {
                self.cache.set(id + 1, value).await;
                self.cache.expire_now(&(id + 1)).await;
                self.tell(id, Cause::Expired);
            }
        }
    }

    /// A look for the dead lets as many leave as the fullest has room for.
    async fn sweep(&mut self) {
        let hears = |subscriber: &&Subscriber| subscriber.hears(Cause::Expired);
        let full = self.subscribers.iter().filter(hears);
        let room = full
            .filter_map(|full| Some(full.capacity?.saturating_sub(full.unread.len())))
            .min()
            .unwrap_or(usize::MAX);
        // The order is the sweeper's choice. Who hears of it while it sweeps has room for all.
        let mut witness = self.cache.events_lossless(1_000_000);
        let report = self.cache.sweep().await;
        let expected = room.min(self.dead.len());
        assert_eq!(
            report.expired as usize,
            expected,
            "of {} with room for {room}",
            self.dead.len()
        );
        assert_eq!(report.held_back, self.dead.len() > room);
        let mut cx = Context::from_waker(Waker::noop());
        let mut told = Vec::new();
        while let Poll::Ready(Some(event)) = Pin::new(&mut witness).poll_next(&mut cx) {
            assert_eq!(event.cause, Cause::Expired);
            told.push(*event.value);
        }
        drop(witness);
        if self.published & 1 == 0 {
            assert!(told.is_empty(), "it is not published");
            let values = &self.values;
            self.dead.retain(|id| values[*id as usize].strong_count() > 0);
        }
        for id in told {
            self.dead.retain(|dead| *dead != id);
            self.tell(id, Cause::Expired);
        }
    }

    fn value(&mut self) -> (u32, Value) {
        let id = self.values.len() as u32;
        let value = Arc::new(id);
        self.values.push(Arc::downgrade(&value));
        (id, value)
    }

    fn tell(&mut self, id: u32, cause: Cause) {
        for subscriber in &mut self.subscribers {
            if !subscriber.hears(cause) {
                continue;
            }
            subscriber.unread.push_back((id, cause));
            if subscriber.capacity.is_none() && subscriber.unread.len() > self.ring {
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
                || self.dead.contains(&id)
                || self.subscribers.iter().any(unread);
            assert_eq!(value.strong_count() > 0, is_held, "whether value {id} is kept");
        }
    }

    /// What is due is told to all, room or not, and the streams end after what they hold.
    async fn end(mut self) {
        // As the order is the cache's choice, one who hears it is asked.
        let mut witness = self.cache.events_lossless(1);
        self.cache.shutdown().await;
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(event)) = Pin::new(&mut witness).poll_next(&mut cx) {
            self.tell(*event.value, event.cause);
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
            Heard::Ring(events) => Heard::Ring(events.only(named(causes))),
            Heard::Lossless(events) => Heard::Lossless(events.only(named(causes))),
        };
        let mut narrowed = Self { stream, causes: self.causes & causes, ..self };
        let causes = named(narrowed.causes);
        narrowed.unread.retain(|(_, cause)| causes.contains(cause));
        narrowed
    }

    fn hears(&self, cause: Cause) -> bool {
        named(self.causes).contains(&cause)
    }

    /// Whether there was something.
    fn read(&mut self) -> bool {
        let waker = Waker::from(self.woken.clone());
        let mut cx = Context::from_waker(&waker);
        let event = |event: Arc<Event<u32, Value>>| (*event.value, event.cause);
        let next = match &mut self.stream {
            Heard::Ring(events) => {
                Pin::new(events).poll_next(&mut cx).map(|next| next.map(|next| next.map(event)))
            }
            Heard::Lossless(events) => {
                Pin::new(events).poll_next(&mut cx).map(|next| next.map(|next| Ok(event(next))))
            }
        };
        let Poll::Ready(Some(next)) = next else {
            assert!(self.unread.is_empty() && self.missed == 0, "there was something to read");
            self.waits = next.is_pending();
            return false;
        };
        match next {
            Ok(event) => {
                assert_eq!(self.missed, 0, "first it is told what it missed");
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
            Heard::Ring(events) => format!("{events:?}"),
            Heard::Lossless(events) => format!("{events:?}"),
        }
    }
}

fn named(causes: u8) -> Vec<Cause> {
    let bits = CAUSES.into_iter().enumerate();
    bits.filter(|(bit, _)| causes & 1 << bit != 0).map(|(_, cause)| cause).collect()
}
