//! Random sequences of everything a cache can do, against a map so simple that it must be right.
//!
//! `PROPTEST_CASES` sets how many sequences (1,000 by default), `FLEETING_SEED` which.

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
type Told = (Key, u32, Cause, Option<Instant>);

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

/// Few keys and few instants, so that they meet.
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
    /// None, by entries or by weight; and so far that nothing ever leaves for it.
    bound: u8,
    idle: Option<u64>,
    lingers: Option<u64>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let sample = prop_oneof![Just(1.0), Just(0.5), Just(0.1)];
    let few = || proptest::option::of(1..6_u64);
    (proptest::option::of(0..5_u64), sample, any::<bool>(), 1..10_usize, 0..3_u8, few(), few())
        .prop_map(|(default_ttl, sample, task, shards, bound, idle, lingers)| Setup {
            default_ttl,
            sample,
            task,
            shards,
            bound,
            idle,
            lingers,
        })
}

fn ticks(n: u64) -> Duration {
    match n {
        u64::MAX => Duration::MAX,
        _ => Duration::from_millis(n * 100),
    }
}

/// `None` is for ever.
fn after(n: u64) -> Option<Instant> {
    (n != u64::MAX).then(|| Instant::now() + ticks(n))
}

/// The naive map: what is resident, dead or not.
#[derive(Default)]
struct Model {
    idle: Option<Duration>,
    /// How long what is dead stays for a loader that fails.
    lingers: Duration,
    /// When each dies idle.
    until: BTreeMap<Key, Instant>,
    /// Dead ones of which a tag was removed: nobody gets them any more.
    untagged: BTreeSet<Key>,
    /// Those that lived when one of their tags was removed, and are still there: the next who looks lets them leave.
    removed: BTreeSet<Key>,
    entries: BTreeMap<Key, (u32, Option<Instant>)>,
    tags: BTreeMap<Key, u8>,
    told: Vec<Told>,
}

impl Model {
    fn is_dead(deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// When it dies: by its own deadline, or idle.
    fn effective(&self, key: Key) -> Option<Instant> {
        let own = self.entries.get(&key)?.1;
        [own, self.until.get(&key).copied()].into_iter().flatten().min()
    }

    fn touch(&mut self, key: Key) {
        if let Some(idle) = self.idle {
            self.until.insert(key, Instant::now() + idle);
        }
    }

    fn is_over(&self, key: Key) -> bool {
        self.effective(key).is_some_and(|at| Instant::now() >= at + self.lingers)
    }

    fn hit(&mut self, key: Key) -> Option<u32> {
        let live = self.live(key);
        if live.is_some() {
            self.touch(key);
        }
        live.map(|(value, _)| value)
    }

    /// What any verb does first: a dead value leaves, unless loaders want it.
    fn live(&mut self, key: Key) -> Option<(u32, Option<Instant>)> {
        let (value, deadline) = *self.entries.get(&key)?;
        if self.removed.contains(&key) {
            self.leave(key, Cause::Removed, deadline);
            return None;
        }
        if !Self::is_dead(self.effective(key)) {
            return Some((value, deadline));
        }
        if self.is_over(key) {
            self.leave(key, Cause::Expired, deadline);
        }
        None
    }

    /// What a verb does first that writes: a dead value leaves, wanted by loaders or not.
    fn live_or_leave(&mut self, key: Key) -> Option<(u32, Option<Instant>)> {
        let live = self.live(key);
        if live.is_none() {
            self.leave(key, Cause::Expired, None);
        }
        live
    }

    fn leave(&mut self, key: Key, cause: Cause, deadline: Option<Instant>) -> Option<u32> {
        let effective = self.effective(key);
        let (value, _) = self.entries.remove(&key)?;
        self.tags.remove(&key);
        self.untagged.remove(&key);
        self.removed.remove(&key);
        self.until.remove(&key);
        let ended = cause == Cause::Expired && !Self::is_dead(effective);
        self.told.push((key, value, cause, if ended { deadline } else { effective }));
        Some(value)
    }

    fn put(&mut self, key: Key, value: u32, deadline: Option<Instant>) -> Option<u32> {
        let (_, old) = self.live_or_leave(key).unzip();
        let replaced = self.leave(key, Cause::Replaced, old.flatten());
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
            |key: Key| !Self::is_dead(self.effective(key)) && !self.removed.contains(&key);
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
        if let Some(lingers) = setup.lingers {
            builder = builder.stale_if_error(ticks(lingers));
        }
        let cache = match setup.bound {
            0 => builder.build(),
            1 => builder.max_entries(1_000).build(),
            _ => builder.max_weight(1_000_000, |_, v| v % 3).build(),
        };
        let model = Model {
            idle: setup.idle.map(ticks),
            lingers: setup.lingers.map(ticks).unwrap_or_default(),
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
                    model.live_or_leave(key);
                    model.put(key, value, ttl.map_or(default, after));
                }
            }
            Op::SetKeepTtl(key) => {
                let kept = model.live(key).map(|(_, deadline)| deadline);
                let replaced = cache.set_keep_ttl(key, value).await;
                assert_eq!(replaced, model.put(key, value, kept.unwrap_or(default)));
            }
            Op::Remove(key) => {
                let live = model.live_or_leave(key);
                let removed = live.and_then(|(_, d)| model.leave(key, Cause::Removed, d));
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
                let live = model.live_or_leave(key).is_some();
                let now = Some(Instant::now());
                let ended = live.then(|| model.leave(key, Cause::Expired, now)).flatten();
                assert_eq!(cache.expire_now(&key).await, ended);
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
                    let deadline = model.live_or_leave(*key)?.1;
                    model.leave(*key, Cause::Removed, deadline)
                });
                let count = removed.count();
                assert_eq!(cache.remove_many(&keys).await, count);
            }
            Op::RemoveIf(n) => {
                let leaving: Vec<Key> =
                    model.live_entries().into_keys().filter(|k| k % n == 0).collect();
                let count = cache.remove_if(|key, _| key % n == 0).await;
                assert_eq!(count, leaving.len());
                for key in leaving {
                    let (_, deadline) = model.entries[&key];
                    model.leave(key, Cause::Removed, deadline);
                }
            }
            Op::Compute(key, change, with) => {
                // What is left as it is, dead or not, does not leave; but what was removed does.
                if model.removed.contains(&key) {
                    model.live(key);
                }
                let live = model.live_entries().get(&key).copied();
                let kept = live.map(|_| model.entries[&key].1);
                let change = match change {
                    Change::Keep => Change::Keep,
                    Change::Set(_) => Change::Set(value),
                    Change::SetEx(_, ttl) => Change::SetEx(value, ttl),
                    Change::SetKeepTtl(_) => Change::SetKeepTtl(value),
                    Change::Remove => Change::Remove,
                };
                let until = match change {
                    Change::SetEx(_, Duration::MAX) => None,
                    Change::SetEx(_, ttl) => Some(Instant::now() + ttl),
                    Change::SetKeepTtl(_) => kept.unwrap_or(default),
                    _ => default,
                };
                let left = match (change, with) {
                    (Change::Keep, true) => {
                        model.live(key);
                        live
                    }
                    (Change::Keep, false) => live,
                    (Change::Remove, _) => {
                        if model.live_or_leave(key).is_some() {
                            model.leave(key, Cause::Removed, kept.flatten());
                        }
                        None
                    }
                    _ => {
                        model.put(key, value, until);
                        Some(value).filter(|_| !Model::is_dead(until))
                    }
                };
                let got = match with {
                    true => {
                        let change = async |seen| {
                            assert_eq!(seen, live);
                            change
                        };
                        cache.compute_with(&key, change).await
                    }
                    false => {
                        let change = |seen: Option<&u32>| {
                            assert_eq!(seen, live.as_ref());
                            change
                        };
                        cache.compute(&key, change).await
                    }
                };
                assert_eq!(got, left);
            }
            Op::Load(key, ttl, fails) => {
                let load = async move || if fails { Err(()) } else { Ok(value) };
                let got = cache.get_or_try_set_with(&key, ticks(ttl), load).await.ok();
                let live = model.hit(key);
                let stale = model.entries.get(&key).map(|(value, _)| *value);
                let stale = stale.filter(|_| fails && !model.untagged.contains(&key));
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
                        true => model.untagged.insert(key),
                        false => model.removed.insert(key),
                    };
                }
            }
            Op::Clear => {
                cache.clear().await;
                let keys: Vec<Key> = model.entries.keys().copied().collect();
                for key in keys {
                    if let Some((_, deadline)) = model.live_or_leave(key) {
                        model.leave(key, Cause::Removed, deadline);
                    }
                }
            }
            Op::Advance(n) => {
                advance(ticks(n)).await;
                self.let_the_sweeper_work().await;
            }
            Op::Sweep => {
                let report = cache.sweep().await;
                let swept = self.accept_what_was_swept();
                assert_eq!(report.expired, swept);
            }
            Op::Pause => cache.pause_sweeper(),
            Op::Resume => cache.resume_sweeper(),
            Op::Look => {
                for key in model.removed.clone() {
                    model.live(key);
                }
                let live = model.live_entries();
                let len = cache.live_len();
                assert_eq!(len, live.len());
                assert_eq!(cache.iter().count(), len, "each entry once");
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

    async fn let_the_sweeper_work(&mut self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.accept_what_was_swept();
    }

    /// The sample is the sweeper's choice; that what it took was dead, and is told as it was, is not.
    fn accept_what_was_swept(&mut self) -> u64 {
        let mut swept = 0;
        while let Some(event) = unconstrained(self.lossless.recv()).now_or_never().flatten() {
            let was_removed = self.model.removed.contains(&event.key);
            assert!(was_removed || self.model.is_over(event.key), "a live value was swept");
            self.model.live_or_leave(event.key);
            let told = (event.key, event.value, event.cause, event.deadline);
            assert_eq!(self.model.told.pop(), Some(told));
            self.hear(told);
            swept += u64::from(!was_removed);
        }
        swept
    }

    fn compare_events(&mut self) {
        let mut told = std::mem::take(&mut self.model.told);
        // `clear` goes by shards; of one key the order stands.
        told.sort_by_key(|(key, ..)| *key);
        let next = || unconstrained(self.lossless.recv()).now_or_never().flatten();
        let mut heard: Vec<Told> = std::iter::from_fn(next)
            .map(|event| (event.key, event.value, event.cause, event.deadline))
            .collect();
        for told in &heard {
            self.hear(*told);
        }
        heard.sort_by_key(|(key, ..)| *key);
        assert_eq!(heard, told);
    }

    /// Both kinds of stream tell the same, in the same order.
    fn hear(&mut self, told: Told) {
        let event = unconstrained(self.events.recv()).now_or_never().flatten().unwrap().unwrap();
        assert_eq!((event.key, event.value, event.cause, event.deadline), told);
        assert_eq!(event.at, Instant::now());
    }

    async fn end(mut self) {
        let dead: Vec<Key> = {
            let live = self.model.live_entries();
            let dead = self.model.entries.keys().filter(|key| !live.contains_key(key));
            dead.copied().collect()
        };
        self.cache.shutdown().await;
        for key in dead {
            self.model.live(key);
        }
        self.compare_events();
        assert_eq!(self.cache.len(), self.model.entries.len());
        assert!(self.lossless.recv().await.is_none() && self.events.recv().await.is_none());
    }
}

#[test]
fn agrees_with_the_naive_map() {
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
