//! Random sequences of all operations of sets, compared with simple lists as a model.
//!
//! Each operation is applied to an `ExpiringSets`; those on key 0 also to an `ExpiringSet`, which must behave
//! the same. `PROPTEST_CASES` sets the number of sequences (1,000 by default), `FLEETING_SEED` the seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use fleeting::{Cause, Events, ExpiringSet, ExpiringSets, LosslessEvents};
use futures::FutureExt;
use proptest::{collection::vec, prelude::*};
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};

use crate::sequences::config;

type Key = u8;
type Member = u16;
type Range = (Bound<i64>, Bound<i64>);
/// Content of the event of a removed member, for a given key.
type Removal = (Member, Cause, Option<Instant>);

const KEYS: u8 = 4;
const ALL_CAUSES: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

#[derive(Clone, Debug)]
enum Op {
    Push(Key, Member),
    PushAt(Key, Member, i64),
    PushUniqueAt(Key, Member, i64),
    Extend(Key, Vec<Member>),
    Range(Key, Range),
    Peek(Key),
    Pop(Key),
    Remove(Key, Member),
    RemoveRange(Key, Range),
    Score(Key, Member),
    Len(Key),
    Clear(Key),
    Keys,
    Advance(u64),
}

/// Few keys, members and instants, so that operations collide.
fn op() -> impl Strategy<Value = Op> {
    let key = || prop_oneof![2 => Just(0), 1 => 1..KEYS];
    let member = || 0..12_u16;
    let score = || prop_oneof![20 => -8..8_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let bound = || {
        prop_oneof![
            2 => score().prop_map(Bound::Included),
            2 => score().prop_map(Bound::Excluded),
            1 => Just(Bound::Unbounded),
        ]
    };
    let range = move || (bound(), bound());
    prop_oneof![
        6 => (key(), member()).prop_map(|(k, m)| Op::Push(k, m)),
        6 => (key(), member(), score()).prop_map(|(k, m, s)| Op::PushAt(k, m, s)),
        3 => (key(), member(), score()).prop_map(|(k, m, s)| Op::PushUniqueAt(k, m, s)),
        2 => (key(), vec(12..400_u16, 0..90)).prop_map(|(k, m)| Op::Extend(k, m)),
        2 => (key(), range()).prop_map(|(k, r)| Op::Range(k, r)),
        1 => key().prop_map(Op::Peek),
        3 => key().prop_map(Op::Pop),
        3 => (key(), member()).prop_map(|(k, m)| Op::Remove(k, m)),
        1 => (key(), range()).prop_map(|(k, r)| Op::RemoveRange(k, r)),
        2 => (key(), member()).prop_map(|(k, m)| Op::Score(k, m)),
        2 => key().prop_map(Op::Len),
        1 => key().prop_map(Op::Clear),
        1 => Just(Op::Keys),
        8 => (0..5_u64).prop_map(Op::Advance),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    ttl: Option<u64>,
    shards: usize,
    sweep_every: u64,
}

fn setup() -> impl Strategy<Value = Setup> {
    let ttl = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 8 => (1..6_u64).prop_map(Some)];
    (ttl, 1..4_usize, prop_oneof![Just(1), Just(1_000)])
        .prop_map(|(ttl, shards, sweep_every)| Setup { ttl, shards, sweep_every })
}

fn ticks(n: u64) -> Duration {
    Duration::from_millis(n * 100)
}

fn instant(offset: i64, far_future: Instant) -> Instant {
    match offset {
        i64::MAX => far_future,
        i64::MIN => Instant::now() - Duration::from_secs(40),
        _ if offset < 0 => Instant::now() - ticks(offset.unsigned_abs()),
        _ => Instant::now() + ticks(offset as u64),
    }
}

fn instants((from, to): Range, far_future: Instant) -> (Bound<Instant>, Bound<Instant>) {
    (from.map(|offset| instant(offset, far_future)), to.map(|offset| instant(offset, far_future)))
}

/// Times more than five centuries ahead cannot be represented as ticks and count as never.
fn is_representable(instant: &Instant) -> bool {
    *instant < Instant::now() + Duration::from_secs(1 << 34)
}

/// The model: the live members of each set. Expired ones are removed before each operation.
struct Model {
    ttl: Option<Duration>,
    sets: BTreeMap<Key, Vec<(Instant, Member)>>,
    expected_events: BTreeMap<Key, Vec<Removal>>,
}

impl Model {
    fn deadline(&self, score: Instant) -> Option<Instant> {
        score.checked_add(self.ttl?).filter(is_representable)
    }

    fn is_expired(&self, score: Instant) -> bool {
        self.deadline(score).is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn set(&mut self, key: Key) -> &mut Vec<(Instant, Member)> {
        self.sets.entry(key).or_default()
    }

    fn remove_if(
        &mut self,
        key: Key,
        is_removed: impl Fn(Instant, Member) -> bool,
        cause: Cause,
    ) -> usize {
        let set = self.set(key);
        let (departed, kept) =
            set.drain(..).partition(|(score, member)| is_removed(*score, *member));
        *set = kept;
        let departed: Vec<_> = departed;
        let expected_events =
            departed.iter().map(|(score, member)| (*member, cause, self.deadline(*score)));
        let expected_events: Vec<Removal> = expected_events.collect();
        self.expected_events.entry(key).or_default().extend(expected_events);
        departed.len()
    }

    fn expire(&mut self) {
        for key in 0..KEYS {
            let expired: BTreeSet<_> = self.set(key).iter().map(|(score, _)| *score).collect();
            let expired: BTreeSet<_> =
                expired.into_iter().filter(|score| self.is_expired(*score)).collect();
            self.remove_if(key, |score, _| expired.contains(&score), Cause::Expired);
        }
    }

    fn push(&mut self, key: Key, member: Member, score: Instant) {
        let position = self.set(key).iter().position(|(_, m)| *m == member);
        if let Some(position) = position {
            self.set(key).remove(position);
        }
        if self.is_expired(score) {
            if position.is_some() {
                let removal = (member, Cause::Expired, self.deadline(score));
                self.expected_events.entry(key).or_default().push(removal);
            }
            return;
        }
        let at = self.set(key).partition_point(|(s, _)| *s <= score);
        self.set(key).insert(at, (score, member));
    }

    fn range(&mut self, key: Key, range: (Bound<Instant>, Bound<Instant>)) -> Vec<Member> {
        use std::ops::RangeBounds;
        let set = self.set(key).iter();
        set.filter(|(score, _)| range.contains(score)).map(|(_, member)| *member).collect()
    }
}

struct Test {
    /// So far ahead that it cannot be represented as a tick.
    far_future: Instant,
    sets: ExpiringSets<Key, Member>,
    set: ExpiringSet<Member>,
    model: Model,
    events: LosslessEvents<Key, Member>,
    broadcast: Events<Key, Member>,
    set_events: LosslessEvents<Member, ()>,
    received: BTreeMap<Key, Vec<Removal>>,
    received_from_set: Vec<Removal>,
}

impl Test {
    fn new(setup: Setup) -> Self {
        let ttl = setup.ttl.map(ticks);
        let sets = ExpiringSets::builder(ttl.unwrap_or(Duration::MAX))
            .shards(setup.shards)
            .sweep_every(ticks(setup.sweep_every))
            .event_capacity(100_000)
            .publish(ALL_CAUSES)
            .build();
        let set = ExpiringSet::builder(ttl.unwrap_or(Duration::MAX))
            .sweep_every(ticks(setup.sweep_every))
            .publish(ALL_CAUSES)
            .build();
        Self {
            far_future: Instant::now() + Duration::from_secs(1 << 36),
            events: sets.events_lossless(100_000),
            broadcast: sets.events(),
            set_events: set.events_lossless(100_000),
            sets,
            set,
            model: Model { ttl, sets: BTreeMap::new(), expected_events: BTreeMap::new() },
            received: BTreeMap::new(),
            received_from_set: Vec::new(),
        }
    }

    async fn run(&mut self, op: Op) {
        let (sets, set, model) = (&self.sets, &self.set, &mut self.model);
        model.expire();
        let (now, far_future) = (Instant::now(), self.far_future);
        let touched = match op {
            Op::Push(key, member) => {
                sets.push(key, member).await;
                if key == 0 {
                    set.push(member).await;
                }
                model.push(key, member, now);
                Some(key)
            }
            Op::PushAt(key, member, score) => {
                let score = instant(score, far_future);
                sets.push_at(key, member, score).await;
                if key == 0 {
                    set.push_at(member, score).await;
                }
                model.push(key, member, score);
                Some(key)
            }
            Op::PushUniqueAt(key, member, score) => {
                let score = instant(score, far_future);
                sets.push_unique_at(key, member, score).await;
                if key == 0 {
                    set.push_unique_at(member, score).await;
                }
                model.remove_if(key, |s, m| s == score && m != member, Cause::Replaced);
                model.push(key, member, score);
                Some(key)
            }
            Op::Extend(key, members) => {
                sets.extend(key, members.iter().copied()).await;
                if key == 0 {
                    set.extend(members.iter().copied()).await;
                }
                members.into_iter().for_each(|member| model.push(key, member, now));
                Some(key)
            }
            Op::Range(key, range) => {
                let range = instants(range, far_future);
                let expected = model.range(key, range);
                assert_eq!(sets.range(&key, range).await, expected);
                if key == 0 {
                    assert_eq!(set.range(range).await, expected);
                }
                Some(key)
            }
            Op::Peek(key) => {
                let first = model.set(key).first().map(|(_, member)| *member);
                assert_eq!(sets.peek(&key).await, first);
                if key == 0 {
                    assert_eq!(set.peek().await, first);
                }
                Some(key)
            }
            Op::Pop(key) => {
                let first = model.set(key).first().map(|(_, member)| *member);
                model.remove_if(key, |_, member| Some(member) == first, Cause::Removed);
                assert_eq!(sets.pop(&key).await, first);
                if key == 0 {
                    assert_eq!(set.pop().await, first);
                }
                Some(key)
            }
            Op::Remove(key, member) => {
                let removed = model.remove_if(key, |_, m| m == member, Cause::Removed) == 1;
                assert_eq!(sets.remove(&key, &member).await, removed);
                if key == 0 {
                    assert_eq!(set.remove(&member).await, removed);
                }
                Some(key)
            }
            Op::RemoveRange(key, range) => {
                let range = instants(range, far_future);
                let removed: BTreeSet<Member> = model.range(key, range).into_iter().collect();
                model.remove_if(key, |_, member| removed.contains(&member), Cause::Removed);
                assert_eq!(sets.remove_range(&key, range).await, removed.len());
                if key == 0 {
                    assert_eq!(set.remove_range(range).await, removed.len());
                }
                Some(key)
            }
            Op::Score(key, member) => {
                let entry = model.set(key).iter().find(|(_, m)| *m == member);
                let score = entry.map(|(score, _)| *score);
                let agrees = |actual: Option<Instant>| match (actual, score) {
                    // A score that cannot be represented is reported as the end of time.
                    (Some(actual), Some(score)) => actual == score || !is_representable(&actual),
                    (actual, score) => actual == score,
                };
                assert!(agrees(sets.score(&key, &member).await));
                assert_eq!(sets.contains(&key, &member).await, score.is_some());
                if key == 0 {
                    assert!(agrees(set.score(&member).await));
                    assert_eq!(set.contains(&member).await, score.is_some());
                }
                Some(key)
            }
            Op::Len(key) => {
                let len = model.set(key).len();
                assert_eq!((sets.len(&key).await, sets.is_empty(&key).await), (len, len == 0));
                if key == 0 {
                    assert_eq!((set.len().await, set.is_empty().await), (len, len == 0));
                }
                Some(key)
            }
            Op::Clear(key) => {
                model.remove_if(key, |_, _| true, Cause::Removed);
                sets.clear(&key).await;
                if key == 0 {
                    set.clear().await;
                }
                Some(key)
            }
            Op::Keys => {
                let live = (0..KEYS).filter(|key| !model.set(*key).is_empty());
                let live: Vec<Key> = live.collect();
                assert_eq!(sets.sets().await, live.len());
                let mut keys = sets.keys().await;
                keys.sort_unstable();
                assert_eq!(keys, live);
                None
            }
            Op::Advance(n) => {
                advance(ticks(n)).await;
                self.model.expire();
                None
            }
        };
        self.receive_events();
        self.compare(touched).await;
    }

    /// Collects the events received so far from all streams.
    fn receive_events(&mut self) {
        while let Some(event) = unconstrained(self.events.recv()).now_or_never().flatten() {
            let same =
                unconstrained(self.broadcast.recv()).now_or_never().flatten().unwrap().unwrap();
            assert_eq!(event, same, "both kinds of streams have the same events");
            let removal = (event.value, event.cause, event.deadline.filter(is_representable));
            self.received.entry(event.key).or_default().push(removal);
        }
        while let Some(event) = unconstrained(self.set_events.recv()).now_or_never().flatten() {
            let deadline = event.deadline.filter(is_representable);
            self.received_from_set.push((event.key, event.cause, deadline));
        }
    }

    /// After an operation on a set, all its events must have been received. The sweeper may still have
    /// expired members to remove in the others.
    async fn compare(&mut self, touched: Option<Key>) {
        for key in 0..KEYS {
            let expected_events = self.model.expected_events.entry(key).or_default();
            let received = self.received.entry(key).or_default();
            assert_eq!(
                *received,
                expected_events[..received.len().min(expected_events.len())],
                "key {key}"
            );
            if touched == Some(key) {
                assert_eq!(received.len(), expected_events.len(), "key {key}");
                let members = self.model.set(key).iter().map(|(_, member)| *member);
                let members: Vec<Member> = members.collect();
                assert_eq!(self.sets.elements(&key).await, members);
                if key == 0 {
                    assert_eq!(self.set.elements().await, members);
                    assert_eq!(self.received_from_set, self.received[&0]);
                }
            }
        }
    }

    /// At the end, every member that can expire does, without a call.
    async fn end(mut self) {
        sleep(ticks(1_000)).await;
        sleep(ticks(1_000)).await;
        self.model.expire();
        self.receive_events();
        for key in 0..KEYS {
            let (expected_events, received) =
                (self.model.expected_events.get(&key), self.received.get(&key));
            assert_eq!(
                received.map_or(0, Vec::len),
                expected_events.map_or(0, Vec::len),
                "key {key}"
            );
            self.compare(Some(key)).await;
        }
        drop((self.sets, self.set));
        assert!(self.events.recv().await.is_none() && self.broadcast.recv().await.is_none());
        assert!(self.set_events.recv().await.is_none());
    }
}

#[test]
fn expiring_sets_agree_with_the_model() {
    let config = config(1_000, 2_016);
    proptest!(config, |(setup in setup(), ops in vec(op(), 1..80))| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut test = Test::new(setup);
            for op in ops {
                test.run(op).await;
            }
            test.end().await;
        });
    });
}
