//! Each method of the cache, with the result that the oracle expects.

use std::collections::BTreeMap;

use fleeting::{Op, Ttl, When};
use tokio::time::Instant;

use super::{Comparison, fold_key, fold_keys, jittered, time};
use crate::{
    calls::{Change, DeadlineCall, Read, Removal, Span, Write},
    oracle::{self, Bound, Condition, Key, Value, Written},
};

impl Comparison {
    pub(super) async fn read(&mut self, key: Key, read: Read) {
        let Self { cache, oracle, .. } = self;
        match read {
            Read::Get => assert_eq!(cache.get(&key).await, oracle.get(key)),
            Read::GetEx(ttl) => {
                let ttl = ttl.duration();
                assert_eq!(cache.get_ex(&key, ttl).await, oracle.get_ex(key, ttl));
            }
            Read::GetExWith(ttl) => {
                let live = oracle.get_ex(key, ttl.duration());
                let found = cache.get_ex_with(&key, |found| {
                    assert_eq!(Some(*found), live);
                    ttl.duration()
                });
                assert_eq!(found.await, live);
            }
            Read::ContainsKey => {
                assert_eq!(cache.contains_key(&key).await, oracle.contains_key(key));
            }
            Read::Ttl => {
                let ttl = match oracle.ttl(key) {
                    None => Ttl::Missing,
                    Some(None) => Ttl::Persistent,
                    Some(Some(left)) => Ttl::Remaining(left),
                };
                assert_eq!(cache.ttl(&key).await, ttl);
            }
        }
    }

    pub(super) async fn write(&mut self, key: Key, write: Write) {
        let jitter = self.oracle.settings.jitter;
        let (cache, oracle, value) = (&self.cache, &mut self.oracle, self.next_value);
        let jittered = |span: Span| jittered(span.duration(), jitter);
        match write {
            Write::Set => {
                assert_eq!(cache.set(key, value).await, oracle.set(key, value, None));
            }
            Write::SetEx(ttl) => {
                let ttl = jittered(ttl);
                let replaced = cache.set_ex(key, value, ttl).await;
                assert_eq!(replaced, oracle.set(key, value, Some(ttl)));
            }
            Write::SetNx(ttl) => {
                let ttl = ttl.map(jittered);
                assert_eq!(cache.set_nx(key, value, ttl).await, oracle.set_nx(key, value, ttl));
            }
            Write::SetKeepTtl => {
                let replaced = cache.set_keep_ttl(key, value).await;
                assert_eq!(replaced, oracle.set_keep_ttl(key, value));
            }
            Write::SetTagged(ttl, tag) => {
                let (ttl, tags) = (jittered(ttl), [tag % 3, 3 + tag % 2]);
                let replaced =
                    cache.set_tagged(key, value, ttl, tags.map(|tag| tag.to_string())).await;
                assert_eq!(replaced, oracle.set_tagged(key, value, ttl, tags));
            }
            Write::Update => {
                let old = cache.update(&key, |old| std::mem::replace(old, value)).await;
                assert_eq!(old, oracle.update(key, value));
            }
        }
    }

    pub(super) async fn write_many(&mut self, keys: Vec<Key>, ttl: Option<Span>) {
        let (value, ttl) = (self.next_value, ttl.map(|ttl| self.ttl(ttl)));
        self.next_value += keys.len() as Value;
        self.cache.set_many(keys.iter().copied().zip(value..), ttl).await;
        for (key, value) in keys.into_iter().zip(value..) {
            self.oracle.set(key, value, ttl);
        }
    }

    pub(super) async fn fill(&mut self, keys: Key, ttl: Span) {
        for key in 0..keys {
            self.write(key, Write::SetEx(ttl)).await;
            self.compare_events(Written::Key(key));
            self.settle_jitter().await;
        }
    }

    pub(super) async fn change_deadline(&mut self, key: Key, call: DeadlineCall) {
        let Self { cache, oracle, start, .. } = self;
        match call {
            DeadlineCall::Expire(ttl) => {
                let ttl = ttl.duration();
                assert_eq!(cache.expire(&key, ttl).await, oracle.expire(key, ttl));
            }
            DeadlineCall::ExpireIf(ttl, condition) => {
                let when = match condition {
                    Condition::NoTtl => When::NoTtl,
                    Condition::HasTtl => When::HasTtl,
                    Condition::Later => When::Later,
                    Condition::Sooner => When::Sooner,
                };
                let changed = oracle.expire_if(key, ttl.duration(), condition);
                assert_eq!(cache.expire_if(&key, ttl.duration(), when).await, changed);
            }
            DeadlineCall::ExpireAt(ahead) => {
                let Some(at) = Instant::now().checked_add(ahead.duration()) else { return };
                assert_eq!(
                    cache.expire_at(&key, at).await,
                    oracle.expire_at(key, time(*start, at))
                );
            }
            DeadlineCall::ExpireBefore(behind) => {
                let Some(at) = Instant::now().checked_sub(behind.duration()) else { return };
                assert_eq!(
                    cache.expire_at(&key, at).await,
                    oracle.expire_at(key, time(*start, at))
                );
            }
            DeadlineCall::Extend(more) => {
                let more = more.duration();
                assert_eq!(cache.extend(&key, more).await, oracle.extend(key, more));
            }
            DeadlineCall::Persist => {
                assert_eq!(cache.persist(&key).await, oracle.persist(key));
            }
            DeadlineCall::ExpireNow => {
                assert_eq!(cache.expire_now(&key).await, oracle.expire_now(key));
            }
        }
    }

    pub(super) async fn compute(&mut self, key: Key, change: Change, is_async: bool) {
        let value = self.next_value;
        let (op, change) = match change {
            Change::Keep => (Op::Keep, oracle::Change::Keep),
            Change::Set => (Op::Set(value), oracle::Change::Set(value)),
            Change::SetEx(ttl) => {
                let ttl = self.ttl(ttl);
                (Op::SetEx(value, ttl), oracle::Change::SetEx(value, ttl))
            }
            Change::SetKeepTtl => (Op::SetKeepTtl(value), oracle::Change::SetKeepTtl(value)),
            Change::Remove => (Op::Remove, oracle::Change::Remove),
        };
        let (before, after) = self.oracle.compute(key, change, is_async);
        let computed = if is_async {
            let change = async |current| {
                assert_eq!(current, before);
                op
            };
            self.cache.compute_with(&key, change).await
        } else {
            let change = |current: Option<&Value>| {
                assert_eq!(current, before.as_ref());
                op
            };
            self.cache.compute(&key, change).await
        };
        assert_eq!(computed, after);
    }

    pub(super) async fn remove(&mut self, removal: Removal) {
        let Self { cache, oracle, .. } = self;
        match removal {
            Removal::One(key) => {
                let key = fold_key(key);
                assert_eq!(cache.remove(&key).await, oracle.remove(key));
            }
            Removal::Many(keys) => {
                let keys = fold_keys(keys);
                let count = keys.iter().filter_map(|key| oracle.remove(*key)).count();
                assert_eq!(cache.remove_many(&keys).await, count);
            }
            Removal::If(n) => {
                let is_multiple = |key: Key| key.is_multiple_of(2 + Key::from(n % 4));
                let count = cache.remove_if(|key, _| is_multiple(*key)).await;
                assert_eq!(count, oracle.remove_if(is_multiple));
            }
            Removal::Retain(n) => {
                let is_multiple = |key: Key| key.is_multiple_of(2 + Key::from(n % 4));
                let count = cache.retain(|key, _| is_multiple(*key)).await;
                assert_eq!(count, oracle.remove_if(|key| !is_multiple(key)));
            }
            // Without events the comparison does not see whether a sweep has removed a tagged entry.
            Removal::Tag(_) if !oracle.causes.contains(&oracle::Cause::Removed) => {}
            Removal::Tag(tag) => {
                cache.remove_tag(&(tag % 5).to_string()).await;
                oracle.remove_tag(tag % 5);
            }
            Removal::All => {
                cache.clear().await;
                oracle.clear();
            }
        }
    }

    pub(super) fn iterate(&mut self) {
        let Self { cache, oracle, .. } = self;
        let live = oracle.iterate();
        assert_eq!(cache.live_len(), live.len());
        assert_eq!(cache.iter().count(), live.len(), "each entry is returned once");
        assert_eq!(cache.iter().collect::<BTreeMap<_, _>>(), live);
        assert_eq!(cache.keys().count() + cache.values().count(), 2 * live.len());
    }

    pub(super) async fn set_bound(&mut self, to: u64) {
        match &mut self.oracle.settings.bound {
            Bound::None => {}
            Bound::Entries(bound) => {
                *bound = to;
                self.cache.set_max_entries(to as usize).await;
            }
            Bound::Weight(bound) => {
                *bound = to;
                self.cache.set_max_weight(to).await;
            }
        }
    }
}
