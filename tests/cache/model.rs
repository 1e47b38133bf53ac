//! Random sequences of all cache methods, compared with a model that is simple enough to be obviously correct.
//!
//! `PROPTEST_CASES` sets the number of sequences (1,000 by default), `FLEETING_SEED` their seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fleeting::{Cache, Cause, Events, LosslessEvents, Op as Change, Sweep, Ttl, When};
use futures::FutureExt;
use proptest::prelude::*;
use tokio::{
    task::unconstrained,
    time::{Instant, advance},
};

use crate::sequences::config;

type Key = u8;
type ReceivedEvent = (Key, u32, Cause, Option<Instant>);

#[derive(Clone, Debug)]
enum Op {
    Get(Key),
    GetEx(Key, u64),
    Set(Key),
    SetEx(Key, u64),
    SetNx(Key, Option<u64>),
    SetKeepTtl(Key),
    Remove(Key),
    ContainsKey(Key),
    Ttl(Key),
    Expire(Key, u64),
    ExpireIf(Key, u64, When),
    ExpireAt(Key, i64),
    Extend(Key, u64),
    Persist(Key),
    ExpireNow(Key),
    Update(Key),
    GetMany(Key, Key),
    SetMany(Vec<Key>, Option<u64>),
    RemoveMany(Vec<Key>),
    RemoveIf(Key),
    Compute(Key, Change<u64>, bool),
    Load(Key, u64, bool),
    SetTagged(Key, u64, u8),
    RemoveTag(u8),
    Clear,
    Advance(u64),
    Sweep,
    Pause,
    Resume,
    Look,
}

/// Few keys and few instants, so that operations affect each other.
fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6_u8;
    let keys = || proptest::collection::vec(0..6_u8, 0..9);
    let ttl = || prop_oneof![9 => 0..8_u64, 1 => Just(u64::MAX)];
    let when =
        prop_oneof![Just(When::NoTtl), Just(When::HasTtl), Just(When::Later), Just(When::Sooner)];
    // The value is the TTL.
    let change = prop_oneof![
        Just(Change::Keep),
        Just(Change::Set(0)),
        ttl().prop_map(|t| Change::SetEx(t, ticks(t))),
        Just(Change::SetKeepTtl(0)),
        Just(Change::Remove),
    ];
    prop_oneof![
        4 => key().prop_map(Op::Get),
        3 => (key(), ttl()).prop_map(|(k, t)| Op::GetEx(k, t)),
        3 => key().prop_map(Op::Set),
        6 => (key(), ttl()).prop_map(|(k, t)| Op::SetEx(k, t)),
        3 => (key(), proptest::option::of(ttl())).prop_map(|(k, t)| Op::SetNx(k, t)),
        3 => key().prop_map(Op::SetKeepTtl),
        2 => key().prop_map(Op::Remove),
        2 => key().prop_map(Op::ContainsKey),
        2 => key().prop_map(Op::Ttl),
        3 => (key(), ttl()).prop_map(|(k, t)| Op::Expire(k, t)),
        4 => (key(), ttl(), when).prop_map(|(k, t, w)| Op::ExpireIf(k, t, w)),
        2 => (key(), -3..8_i64).prop_map(|(k, t)| Op::ExpireAt(k, t)),
        2 => (key(), ttl()).prop_map(|(k, t)| Op::Extend(k, t)),
        2 => key().prop_map(Op::Persist),
        2 => key().prop_map(Op::ExpireNow),
        2 => key().prop_map(Op::Update),
        1 => (key(), key()).prop_map(|(k, l)| Op::GetMany(k, l)),
        3 => (keys(), proptest::option::of(ttl())).prop_map(|(keys, t)| Op::SetMany(keys, t)),
        2 => keys().prop_map(Op::RemoveMany),
        1 => (2..4_u8).prop_map(Op::RemoveIf),
        3 => (key(), change, any::<bool>()).prop_map(|(k, c, w)| Op::Compute(k, c, w)),
        3 => (key(), ttl(), any::<bool>()).prop_map(|(k, t, fails)| Op::Load(k, t, fails)),
        3 => (key(), ttl(), 0..3_u8).prop_map(|(k, t, tag)| Op::SetTagged(k, t, tag)),
        1 => (0..3_u8).prop_map(Op::RemoveTag),
        1 => Just(Op::Clear),
        8 => (0..5_u64).prop_map(Op::Advance),
        3 => Just(Op::Sweep),
        1 => Just(Op::Pause),
        1 => Just(Op::Resume),
        3 => Just(Op::Look),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    default_ttl: Option<u64>,
    sample: f64,
    task: bool,
    shards: usize,
    /// 0: no bound, 1: by entries, 2: by weight; both too large to evict anything.
    bound: u8,
    idle: Option<u64>,
    stale_window: Option<u64>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let sample = prop_oneof![Just(1.0), Just(0.5), Just(0.1)];
    let few = || proptest::option::of(1..6_u64);
    (proptest::option::of(0..5_u64), sample, any::<bool>(), 1..10_usize, 0..3_u8, few(), few())
        .prop_map(|(default_ttl, sample, task, shards, bound, idle, stale_window)| Setup {
            default_ttl,
            sample,
            task,
            shards,
            bound,
            idle,
            stale_window,
        })
}

fn ticks(n: u64) -> Duration {
    match n {
        u64::MAX => Duration::MAX,
        _ => Duration::from_millis(n * 100),
    }
}

/// `None` means persistent.
fn after(n: u64) -> Option<Instant> {
    (n != u64::MAX).then(|| Instant::now() + ticks(n))
}

/// Model of the cache: the resident entries, live or expired.
#[derive(Default)]
struct Model {
    idle: Option<Duration>,
    /// Stale window: time for which an expired entry is kept for `stale_if_error`.
    stale_window: Duration,
    /// Idle deadlines.
    idle_deadlines: BTreeMap<Key, Instant>,
    /// Expired entries of which a tag was removed: no loader may return them any more.
    removed_while_expired: BTreeSet<Key>,
    /// Entries that were live when one of their tags was removed, and are still resident: the next lookup
    /// removes them.
    removed_by_tag: BTreeSet<Key>,
    entries: BTreeMap<Key, (u32, Option<Instant>)>,
    tags: BTreeMap<Key, u8>,
    expected: Vec<ReceivedEvent>,
}

impl Model {
    fn is_dead(deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns the earlier of the hard and the idle deadline.
    fn effective(&self, key: Key) -> Option<Instant> {
        let hard_deadline = self.entries.get(&key)?.1;
        [hard_deadline, self.idle_deadlines.get(&key).copied()].into_iter().flatten().min()
    }

    fn touch(&mut self, key: Key) {
        if let Some(idle) = self.idle {
            self.idle_deadlines.insert(key, Instant::now() + idle);
        }
    }

    fn is_past_stale_window(&self, key: Key) -> bool {
        self.effective(key).is_some_and(|at| Instant::now() >= at + self.stale_window)
    }

    fn hit(&mut self, key: Key) -> Option<u32> {
        let live = self.live(key);
        if live.is_some() {
            self.touch(key);
        }
        live.map(|(value, _)| value)
    }

    /// First step of each method: removes an expired entry, unless it is within its stale window.
    fn live(&mut self, key: Key) -> Option<(u32, Option<Instant>)> {
        let (value, deadline) = *self.entries.get(&key)?;
        if self.removed_by_tag.contains(&key) {
            self.remove(key, Cause::Removed, deadline);
            return None;
        }
        if !Self::is_dead(self.effective(key)) {
            return Some((value, deadline));
        }
        if self.is_past_stale_window(key) {
            self.remove(key, Cause::Expired, deadline);
        }
        None
    }

    /// First step of each write: removes an expired entry, even within its stale window.
    fn live_or_remove(&mut self, key: Key) -> Option<(u32, Option<Instant>)> {
        let live = self.live(key);
        if live.is_none() {
            self.remove(key, Cause::Expired, None);
        }
        live
    }

    fn remove(&mut self, key: Key, cause: Cause, deadline: Option<Instant>) -> Option<u32> {
        let effective = self.effective(key);
        let (value, _) = self.entries.remove(&key)?;
        self.tags.remove(&key);
        self.removed_while_expired.remove(&key);
        self.removed_by_tag.remove(&key);
        self.idle_deadlines.remove(&key);
        let expired_now = cause == Cause::Expired && !Self::is_dead(effective);
        self.expected.push((key, value, cause, if expired_now { deadline } else { effective }));
        Some(value)
    }

    fn put(&mut self, key: Key, value: u32, deadline: Option<Instant>) -> Option<u32> {
        let (_, old) = self.live_or_remove(key).unzip();
        let replaced = self.remove(key, Cause::Replaced, old.flatten());
        self.entries.insert(key, (value, deadline));
        self.touch(key);
        replaced
    }

    fn set_deadline(&mut self, key: Key, deadline: Option<Instant>) {
        self.entries.get_mut(&key).unwrap().1 = deadline;
        self.touch(key);
    }

    fn live_entries(&self) -> BTreeMap<Key, u32> {
        let is_live =
            |key: Key| !Self::is_dead(self.effective(key)) && !self.removed_by_tag.contains(&key);
        let live = self.entries.iter().filter(|(key, _)| is_live(**key));
        live.map(|(key, (value, _))| (*key, *value)).collect()
    }
}

struct Test {
    cache: Cache<Key, u32>,
    model: Model,
    events: Events<Key, u32>,
    lossless: LosslessEvents<Key, u32>,
    default_ttl: Option<u64>,
    next_value: u32,
    bound: u8,
}

impl Test {
    fn new(setup: Setup) -> Self {
        let sweep = if setup.task { Sweep::default() } else { Sweep::manual() };
        let mut builder = Cache::builder()
            .sweep(sweep.sample(setup.sample).seed(1))
            .shards(setup.shards)
            .event_capacity(10_000)
            .publish([Cause::Expired, Cause::Removed, Cause::Replaced]);
        if let Some(ttl) = setup.default_ttl {
            builder = builder.time_to_live(ticks(ttl));
        }
        if let Some(idle) = setup.idle {
            builder = builder.time_to_idle(ticks(idle));
        }
        if let Some(stale_window) = setup.stale_window {
            builder = builder.stale_if_error(ticks(stale_window));
        }
        let cache = match setup.bound {
            0 => builder.build(),
            1 => builder.max_entries(1_000).build(),
            _ => builder.max_weight(1_000_000, |_, v| v % 3).build(),
        };
        let model = Model {
            idle: setup.idle.map(ticks),
            stale_window: setup.stale_window.map(ticks).unwrap_or_default(),
            ..Model::default()
        };
        Self {
            events: cache.events(),
            lossless: cache.events_lossless(10_000),
            cache,
            model,
            default_ttl: setup.default_ttl,
            next_value: 0,
            bound: setup.bound,
        }
    }

    async fn run(&mut self, op: Op) {
        self.next_value += 1;
        let (cache, model, value) = (&self.cache, &mut self.model, self.next_value);
        let default = self.default_ttl.and_then(after);
        match op {
            Op::Get(key) => {
                assert_eq!(cache.get(&key).await, model.hit(key));
            }
            Op::GetEx(key, ttl) => {
                let live = model.live(key);
                assert_eq!(cache.get_ex(&key, ticks(ttl)).await, live.map(|(value, _)| value));
                if live.is_some() {
                    model.set_deadline(key, after(ttl));
                }
            }
            Op::Set(key) => {
                assert_eq!(cache.set(key, value).await, model.put(key, value, default));
            }
            Op::SetEx(key, ttl) => {
                let replaced = cache.set_ex(key, value, ticks(ttl)).await;
                assert_eq!(replaced, model.put(key, value, after(ttl)));
            }
            Op::SetNx(key, ttl) => {
                let set = cache.set_nx(key, value, ttl.map(ticks)).await;
                assert_eq!(set, model.live(key).is_none());
                if set {
                    model.live_or_remove(key);
                    model.put(key, value, ttl.map_or(default, after));
                }
            }
            Op::SetKeepTtl(key) => {
                let current_deadline = model.live(key).map(|(_, deadline)| deadline);
                let replaced = cache.set_keep_ttl(key, value).await;
                assert_eq!(replaced, model.put(key, value, current_deadline.unwrap_or(default)));
            }
            Op::Remove(key) => {
                let live = model.live_or_remove(key);
                let removed = live.and_then(|(_, d)| model.remove(key, Cause::Removed, d));
                assert_eq!(cache.remove(&key).await, removed);
            }
            Op::ContainsKey(key) => {
                assert_eq!(cache.contains_key(&key).await, model.live(key).is_some());
            }
            Op::Ttl(key) => {
                let ttl = match model.live(key) {
                    None => Ttl::Missing,
                    Some(_) => match model.effective(key) {
                        None => Ttl::Persistent,
                        Some(deadline) => Ttl::Remaining(deadline - Instant::now()),
                    },
                };
                assert_eq!(cache.ttl(&key).await, ttl);
            }
            Op::Expire(key, ttl) => {
                let live = model.live(key).is_some();
                assert_eq!(cache.expire(&key, ticks(ttl)).await, live);
                if live {
                    model.set_deadline(key, after(ttl));
                }
            }
            Op::ExpireIf(key, ttl, when) => {
                let new = after(ttl);
                let holds = model.live(key).is_some_and(|(_, old)| match (when, old, new) {
                    (When::NoTtl, old, _) => old.is_none(),
                    (When::HasTtl, old, _) => old.is_some(),
                    (When::Later, None, _) => false,
                    (When::Later, Some(_), None) => true,
                    (When::Later, Some(old), Some(new)) => new > old,
                    (When::Sooner, _, None) => false,
                    (When::Sooner, None, Some(_)) => true,
                    (When::Sooner, Some(old), Some(new)) => new < old,
                    (other, ..) => unreachable!("{other:?}"),
                });
                assert_eq!(cache.expire_if(&key, ticks(ttl), when).await, holds);
                if holds {
                    model.set_deadline(key, new);
                }
            }
            Op::ExpireAt(key, offset) => {
                let offset_by = ticks(offset.unsigned_abs());
                let at = match offset < 0 {
                    true => Instant::now() - offset_by,
                    false => Instant::now() + offset_by,
                };
                let live = model.live(key).is_some();
                assert_eq!(cache.expire_at(&key, at).await, live);
                if live {
                    model.set_deadline(key, Some(at));
                }
            }
            Op::Extend(key, ttl) => {
                let old = model.live(key).and_then(|(_, deadline)| deadline);
                assert_eq!(cache.extend(&key, ticks(ttl)).await, old.is_some());
                if let Some(old) = old {
                    model.set_deadline(key, old.checked_add(ticks(ttl)));
                }
            }
            Op::Persist(key) => {
                let had = model.live(key).is_some_and(|(_, deadline)| deadline.is_some());
                assert_eq!(cache.persist(&key).await, had);
                if had {
                    model.set_deadline(key, None);
                }
            }
            Op::ExpireNow(key) => {
                let live = model.live_or_remove(key).is_some();
                let now = Some(Instant::now());
                let expired_now = live.then(|| model.remove(key, Cause::Expired, now)).flatten();
                assert_eq!(cache.expire_now(&key).await, expired_now);
            }
            Op::Update(key) => {
                let live = model.live(key).map(|(value, _)| value);
                let old = cache.update(&key, |v| std::mem::replace(v, value)).await;
                assert_eq!(old, live);
                if live.is_some() {
                    model.entries.get_mut(&key).unwrap().0 = value;
                }
            }
            Op::GetMany(a, b) => {
                let values = cache.get_many([&a, &b, &a]).await;
                let mut live = |key| model.hit(key);
                assert_eq!(values, [live(a), live(b), live(a)]);
            }
            Op::SetMany(keys, ttl) => {
                cache.set_many(keys.iter().copied().zip(value..), ttl.map(ticks)).await;
                self.next_value += keys.len() as u32;
                for (key, value) in keys.into_iter().zip(value..) {
                    model.put(key, value, ttl.map_or(default, after));
                }
            }
            Op::RemoveMany(keys) => {
                let removed = keys.iter().filter_map(|key| {
                    let deadline = model.live_or_remove(*key)?.1;
                    model.remove(*key, Cause::Removed, deadline)
                });
                let count = removed.count();
                assert_eq!(cache.remove_many(&keys).await, count);
            }
            Op::RemoveIf(n) => {
                let matching: Vec<Key> =
                    model.live_entries().into_keys().filter(|k| k % n == 0).collect();
                let count = cache.remove_if(|key, _| key % n == 0).await;
                assert_eq!(count, matching.len());
                for key in matching {
                    let (_, deadline) = model.entries[&key];
                    model.remove(key, Cause::Removed, deadline);
                }
            }
            Op::Compute(key, change, with) => {
                // `Op::Keep` removes no expired entry, but it does remove one that was removed by tag.
                if model.removed_by_tag.contains(&key) {
                    model.live(key);
                }
                let live = model.live_entries().get(&key).copied();
                let current_deadline = live.map(|_| model.entries[&key].1);
                let change = match change {
                    Change::Keep => Change::Keep,
                    Change::Set(_) => Change::Set(value),
                    Change::SetEx(_, ttl) => Change::SetEx(value, ttl),
                    Change::SetKeepTtl(_) => Change::SetKeepTtl(value),
                    Change::Remove => Change::Remove,
                };
                let deadline = match change {
                    Change::SetEx(_, Duration::MAX) => None,
                    Change::SetEx(_, ttl) => Some(Instant::now() + ttl),
                    Change::SetKeepTtl(_) => current_deadline.unwrap_or(default),
                    _ => default,
                };
                let result = match (change, with) {
                    (Change::Keep, true) => {
                        model.live(key);
                        live
                    }
                    (Change::Keep, false) => live,
                    (Change::Remove, _) => {
                        if model.live_or_remove(key).is_some() {
                            model.remove(key, Cause::Removed, current_deadline.flatten());
                        }
                        None
                    }
                    _ => {
                        model.put(key, value, deadline);
                        Some(value).filter(|_| !Model::is_dead(deadline))
                    }
                };
                let got = match with {
                    true => {
                        let change = async |current| {
                            assert_eq!(current, live);
                            change
                        };
                        cache.compute_with(&key, change).await
                    }
                    false => {
                        let change = |current: Option<&u32>| {
                            assert_eq!(current, live.as_ref());
                            change
                        };
                        cache.compute(&key, change).await
                    }
                };
                assert_eq!(got, result);
            }
            Op::Load(key, ttl, fails) => {
                let load = async move || if fails { Err(()) } else { Ok(value) };
                let got = cache.get_or_try_set_with(&key, ticks(ttl), load).await.ok();
                let live = model.hit(key);
                let stale = model.entries.get(&key).map(|(value, _)| *value);
                let stale = stale.filter(|_| fails && !model.removed_while_expired.contains(&key));
                if live.is_none() && !fails {
                    model.put(key, value, after(ttl));
                }
                assert_eq!(got, live.or((!fails).then_some(value)).or(stale));
            }
            Op::SetTagged(key, ttl, tag) => {
                let tag = [tag, 3 + tag % 2].map(|tag| tag.to_string());
                let replaced = cache.set_tagged(key, value, ticks(ttl), tag.clone()).await;
                assert_eq!(replaced, model.put(key, value, after(ttl)));
                model.tags.insert(key, tag[0].parse().unwrap());
            }
            Op::RemoveTag(tag) => {
                let tagged = model.tags.iter().filter(|(_, its)| **its == tag);
                let tagged: Vec<Key> = tagged.map(|(key, _)| *key).collect();
                cache.remove_tag(&tag.to_string()).await;
                for key in tagged {
                    match Model::is_dead(model.effective(key)) {
                        true => model.removed_while_expired.insert(key),
                        false => model.removed_by_tag.insert(key),
                    };
                }
            }
            Op::Clear => {
                cache.clear().await;
                let keys: Vec<Key> = model.entries.keys().copied().collect();
                for key in keys {
                    if let Some((_, deadline)) = model.live_or_remove(key) {
                        model.remove(key, Cause::Removed, deadline);
                    }
                }
            }
            Op::Advance(n) => {
                advance(ticks(n)).await;
                self.run_sweeper().await;
            }
            Op::Sweep => {
                let report = cache.sweep().await;
                let swept = self.apply_swept_entries();
                assert_eq!(report.expired, swept);
            }
            Op::Pause => cache.pause_sweeper(),
            Op::Resume => cache.resume_sweeper(),
            Op::Look => {
                for key in model.removed_by_tag.clone() {
                    model.live(key);
                }
                let live = model.live_entries();
                let len = cache.live_len();
                assert_eq!(len, live.len());
                assert_eq!(cache.iter().count(), len, "each entry is returned once");
                assert_eq!(cache.iter().collect::<BTreeMap<_, _>>(), live);
                assert_eq!(cache.keys().count() + cache.values().count(), 2 * len);
            }
        }
        let (len, resident) = (self.cache.len(), self.model.entries.len());
        assert_eq!((len, self.cache.is_empty()), (resident, resident == 0));
        let weight: u32 =
            self.model.entries.values().map(|(v, _)| if self.bound == 2 { v % 3 } else { 1 }).sum();
        assert_eq!(self.cache.weight(), u64::from(weight));
        self.compare_events();
    }

    async fn run_sweeper(&mut self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.apply_swept_entries();
    }

    /// The sweeper chooses its sample. The model checks that each swept entry had expired, and that its event is
    /// correct.
    fn apply_swept_entries(&mut self) -> u64 {
        let mut swept = 0;
        while let Some(event) = unconstrained(self.lossless.recv()).now_or_never().flatten() {
            let was_removed = self.model.removed_by_tag.contains(&event.key);
            assert!(
                was_removed || self.model.is_past_stale_window(event.key),
                "the sweeper removed a live entry"
            );
            self.model.live_or_remove(event.key);
            let expected = (event.key, event.value, event.cause, event.deadline);
            assert_eq!(self.model.expected.pop(), Some(expected));
            self.check_broadcast_event(expected);
            swept += u64::from(!was_removed);
        }
        swept
    }

    fn compare_events(&mut self) {
        let mut expected = std::mem::take(&mut self.model.expected);
        // `clear` goes shard by shard, so only the order of events of one key is specified.
        expected.sort_by_key(|(key, ..)| *key);
        let next = || unconstrained(self.lossless.recv()).now_or_never().flatten();
        let mut received: Vec<ReceivedEvent> = std::iter::from_fn(next)
            .map(|event| (event.key, event.value, event.cause, event.deadline))
            .collect();
        for expected in &received {
            self.check_broadcast_event(*expected);
        }
        received.sort_by_key(|(key, ..)| *key);
        assert_eq!(received, expected);
    }

    /// Both kinds of streams yield the same events in the same order.
    fn check_broadcast_event(&mut self, expected: ReceivedEvent) {
        let event = unconstrained(self.events.recv()).now_or_never().flatten().unwrap().unwrap();
        assert_eq!((event.key, event.value, event.cause, event.deadline), expected);
        assert_eq!(event.at, Instant::now());
    }

    async fn end(mut self) {
        let expired: Vec<Key> = {
            let live = self.model.live_entries();
            let expired = self.model.entries.keys().filter(|key| !live.contains_key(key));
            expired.copied().collect()
        };
        self.cache.shutdown().await;
        for key in expired {
            self.model.live(key);
        }
        self.compare_events();
        assert_eq!(self.cache.len(), self.model.entries.len());
        assert!(self.lossless.recv().await.is_none() && self.events.recv().await.is_none());
    }
}

#[test]
fn cache_agrees_with_the_naive_model() {
    let config = config(1_000, 2_015);
    proptest!(config, |(setup in setup(), ops in proptest::collection::vec(op(), 1..80))| {
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
