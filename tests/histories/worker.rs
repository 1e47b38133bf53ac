//! A caller of a history: makes random calls and records what they did to each key.

use std::{
    hint,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Op, Ttl, When};
use futures::FutureExt;
use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};

use crate::{
    checker::Operation,
    model::{Action, Entry},
    verbs::{Plan, Verb},
};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
const TAGS: [&str; 2] = ["a", "b"];

/// One history, shared by its callers.
pub(crate) struct History {
    pub(crate) cache: Cache<u8, u32>,
    pub(crate) keys: u8,
    /// Number of different tags.
    pub(crate) tags: usize,
    pub(crate) plan: Plan,
    pub(crate) start: Instant,
    /// Number of loaders that returned.
    pub(crate) loads: AtomicU64,
}

impl History {
    /// Returns the time since the start, in nanoseconds; never zero.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }
}

pub(crate) struct Worker {
    pub(crate) history: Arc<History>,
    pub(crate) random: SmallRng,
    /// The last value that was written; each is written once per history.
    pub(crate) value: u32,
    pub(crate) log: Vec<(u8, Operation)>,
}

impl Worker {
    /// Chooses some tags. Returns their bits and their names.
    pub(crate) fn tags(&mut self) -> (u8, Vec<&'static str>) {
        let mask = self.random.random_range(1..1_u8 << self.history.tags);
        let tags = TAGS.into_iter().enumerate().filter(|(n, _)| mask >> n & 1 == 1);
        (mask, tags.map(|(_, tag)| tag).collect())
    }

    /// Makes the calls that precede the other callers.
    pub(crate) async fn run_before(&mut self) {
        let history = self.history.clone();
        for verb in &history.plan.before {
            self.call(*verb).await;
        }
    }

    pub(crate) async fn run(&mut self, calls: u32) {
        let history = self.history.clone();
        // Different offsets of calls that begin together.
        (0..self.random.random_range(0..16)).for_each(|_| hint::spin_loop());
        if let Some(verb) = history.plan.opening {
            self.call(verb).await;
        }
        for _ in 0..calls {
            let verb = *history.plan.verbs.choose(&mut self.random).expect("a plan has verbs");
            self.call(verb).await;
        }
    }

    pub(crate) fn next_value(&mut self) -> u32 {
        self.value += 1;
        self.value
    }

    fn next_entry(&mut self, hours: Option<u32>) -> Entry {
        Entry { value: self.next_value(), tags: 0, hours }
    }

    pub(crate) fn record(&mut self, key: u8, call: u64, ret: u64, action: Action) {
        self.log.push((key, Operation { call, ret, action }));
    }

    /// Makes a call with one key and records its action.
    async fn single(&mut self, key: u8, call: impl Future<Output = Action>) {
        let began = self.history.now();
        let action = call.await;
        let ended = self.history.now();
        self.record(key, began, ended, action);
    }

    /// Makes a call with all keys and records its actions.
    async fn all(&mut self, call: impl Future<Output = Vec<Action>>) {
        let began = self.history.now();
        let actions = call.await;
        let ended = self.history.now();
        for (key, action) in (0..).zip(actions) {
            self.record(key, began, ended, action);
        }
    }

    async fn call(&mut self, verb: Verb) {
        let history = self.history.clone();
        let (cache, keys) = (&history.cache, history.keys);
        let key = self.random.random_range(0..keys);
        let hours = self.random.random_range(1..100);
        let ttl = hours * HOUR;
        match verb {
            Verb::Get => self.single(key, async { Action::Saw(cache.get(&key).await) }).await,
            Verb::Contains => {
                self.single(key, async { Action::Contains(cache.contains_key(&key).await) }).await;
            }
            Verb::Set => {
                let new = self.next_entry(None);
                let put = async { Some(cache.set(key, new.value).await) };
                self.put(key, new, false, put).await;
            }
            Verb::SetEx => {
                let new = self.next_entry(Some(hours));
                let put = async { Some(cache.set_ex(key, new.value, ttl).await) };
                self.put(key, new, false, put).await;
            }
            Verb::SetKeepTtl => {
                let new = self.next_entry(None);
                let put = async { Some(cache.set_keep_ttl(key, new.value).await) };
                self.put(key, new, true, put).await;
            }
            Verb::SetTagged => {
                let (mask, tags) = self.tags();
                let new = Entry { tags: mask, ..self.next_entry(Some(hours)) };
                let put = async { Some(cache.set_tagged(key, new.value, ttl, tags).await) };
                self.put(key, new, false, put).await;
            }
            Verb::SetNx => {
                let new = self.next_entry(Some(hours));
                let put = cache.set_nx(key, new.value, Some(ttl));
                let action = async { Action::PutIfAbsent { new, was_put: put.await } };
                self.single(key, action).await;
            }
            Verb::Remove => {
                let taken = cache.remove(&key).map(Some);
                self.single(key, taken.map(|taken| Action::Take { cause: Cause::Removed, taken }))
                    .await;
            }
            Verb::ExpireNow => {
                let taken = cache.expire_now(&key).map(Some);
                self.single(key, taken.map(|taken| Action::Take { cause: Cause::Expired, taken }))
                    .await;
            }
            Verb::Update => {
                let new = self.next_value();
                let old = cache.update(&key, |value| std::mem::replace(value, new));
                self.single(key, old.map(|old| Action::Update { new, old })).await;
            }
            Verb::Compute => self.compute(key, hours).await,
            Verb::ComputeWith => self.compute_with(key, hours).await,
            Verb::GetMany => {
                let keys: Vec<u8> = (0..keys).collect();
                let found = cache.get_many(&keys);
                self.all(found.map(|found| found.into_iter().map(Action::Saw).collect())).await;
            }
            Verb::Iter => {
                let found = async {
                    let found: Vec<_> = cache.iter().collect();
                    let of_key = |key| found.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
                    (0..keys).map(|key| Action::Saw(of_key(key))).collect()
                };
                self.all(found).await;
            }
            Verb::SetMany => {
                let news: Vec<_> = (0..keys).map(|_| self.next_entry(Some(hours))).collect();
                let put =
                    cache.set_many((0..keys).zip(news.iter().map(|new| new.value)), Some(ttl));
                let actions = news.iter().map(|new| Action::Put {
                    new: *new,
                    keeps_ttl: false,
                    replaced: None,
                });
                self.all(put.map(|()| actions.collect())).await;
            }
            Verb::RemoveMany => {
                let all: Vec<u8> = (0..keys).collect();
                let removed = cache.remove_many(&all).map(|removed| {
                    assert!(removed <= all.len());
                    // The number does not tell which keys had a value, unless none had.
                    let taken = (removed == 0).then_some(None);
                    vec![Action::Take { cause: Cause::Removed, taken }; all.len()]
                });
                self.all(removed).await;
            }
            Verb::RemoveIf => {
                let takes = self.random.random_bool(0.7);
                let mut saw = vec![None; usize::from(keys)];
                let removed = async {
                    let predicate = |key: &u8, value: &u32| {
                        saw[usize::from(*key)] = Some(*value);
                        takes
                    };
                    let removed = cache.remove_if(predicate).await;
                    let seen = saw.iter().flatten().count();
                    assert_eq!(removed, if takes { seen } else { 0 }, "removed by `remove_if`");
                    saw.iter().map(|saw| Action::TakeIf { saw: *saw, takes }).collect()
                };
                self.all(removed).await;
            }
            Verb::Clear => {
                let action = Action::Take { cause: Cause::Removed, taken: None };
                self.all(cache.clear().map(|()| vec![action; usize::from(keys)])).await;
            }
            Verb::Sweep => drop(cache.sweep().await),
            Verb::Ttl => {
                let ttl = async {
                    Action::Ttl(match cache.ttl(&key).await {
                        Ttl::Missing => None,
                        Ttl::Persistent => Some(None),
                        // Rounded: the clock was read before the shard was locked, so the TTL may be longer.
                        Ttl::Remaining(left) => {
                            let hours = left.div_duration_f64(HOUR).round() as u32;
                            (hours > 0).then_some(Some(hours))
                        }
                    })
                };
                self.single(key, ttl).await;
            }
            Verb::GetEx => {
                let saw = cache.get_ex(&key, ttl);
                self.single(key, saw.map(|saw| Action::GetEx { hours, saw })).await;
            }
            Verb::Expire => {
                let hours = *[0, hours].choose(&mut self.random).expect("two");
                let changed = cache.expire(&key, hours * HOUR);
                let action = |was_changed| Action::Expire { hours, when: None, was_changed };
                self.single(key, changed.map(action)).await;
            }
            Verb::ExpireAt => {
                let hours = *[0, hours].choose(&mut self.random).expect("two");
                let changed = cache.expire_at(&key, tokio::time::Instant::now() + hours * HOUR);
                let action = |was_changed| Action::Expire { hours, when: None, was_changed };
                self.single(key, changed.map(action)).await;
            }
            Verb::ExpireIf => {
                let whens = [When::NoTtl, When::HasTtl, When::Later, When::Sooner];
                let when = *whens.choose(&mut self.random).expect("four");
                let changed = cache.expire_if(&key, ttl, when);
                let action = |was_changed| Action::Expire { hours, when: Some(when), was_changed };
                self.single(key, changed.map(action)).await;
            }
            Verb::Persist => self.single(key, cache.persist(&key).map(Action::Persist)).await,
            Verb::Extend => {
                let changed = cache.extend(&key, ttl);
                let action = |was_changed| Action::Extend { hours, was_changed };
                self.single(key, changed.map(action)).await;
            }
            Verb::RemoveTag => {
                let tag = self.random.random_range(0..history.tags);
                let action = Action::RemoveTag(1 << tag);
                let removed = cache.remove_tag(TAGS[tag]);
                self.all(removed.map(|()| vec![action; usize::from(keys)])).await;
            }
            Verb::SetMaxEntries => {
                let set = cache.set_max_entries(self.random.random_range(1..=3));
                self.all(set.map(|()| vec![Action::SetBound; usize::from(keys)])).await;
            }
            Verb::Load | Verb::TryLoad | Verb::LoadByFuture | Verb::Refresh => {
                self.load(verb, key, hours).await;
            }
            Verb::LoadMany => self.load_many(hours).await,
        }
    }

    async fn put(
        &mut self,
        key: u8,
        new: Entry,
        keeps_ttl: bool,
        call: impl Future<Output = Option<Option<u32>>>,
    ) {
        let action = call.map(|replaced| Action::Put { new, keeps_ttl, replaced });
        self.single(key, action).await;
    }

    /// Returns a random change of a value: written, removed or kept.
    pub(crate) fn change(&mut self, hours: u32) -> (Option<Option<Entry>>, Op<u32>) {
        let new = self.next_entry(Some(hours));
        match self.random.random_range(0..4) {
            0 => (None, Op::Keep),
            1 => (Some(None), Op::Remove),
            _ => (Some(Some(new)), Op::SetEx(new.value, hours * HOUR)),
        }
    }

    async fn compute(&mut self, key: u8, hours: u32) {
        let history = self.history.clone();
        let (writes, op) = self.change(hours);
        let action = async {
            let mut saw = None;
            let change = |value: Option<&u32>| {
                saw = value.copied();
                op
            };
            let after = history.cache.compute(&key, change).await;
            let expected = match writes {
                None => saw,
                Some(new) => new.map(|new| new.value),
            };
            assert_eq!(after, expected, "returned by `compute`");
            Action::Compute { saw, writes }
        };
        self.single(key, action).await;
    }
}
