//! Calls of a `Cache`.

use std::{collections::BTreeMap, time::Duration};

use arbitrary::Arbitrary;
use fleeting::{
    Ttl, When,
    redis::{Cache, Client, Error, Format, LosslessEvents},
};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use crate::{
    LONG, MOST_CALLS,
    outcome::{Known, Model, built, outcome},
    sequence::Sequence,
    values::{Bytes, Key, Number, Span, Text},
};

/// Time for which a subscriber waits for an event.
const SHORT: Duration = Duration::from_millis(5);

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Settings {
    time_to_live: Option<Span>,
    events: Option<Span>,
    stale_while_revalidate: Option<Span>,
    negative_ttl: Option<Span>,
    lease: Option<Span>,
    has_jitter: bool,
    refreshes_ahead: bool,
    near: Option<Number>,
    near_max_age: Option<Span>,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Call {
    Get(Key),
    GetEx(Key, Span),
    GetMany(Vec<Key>),
    Set(Key, Bytes),
    SetEx(Key, Bytes, Span),
    SetNx(Key, Bytes, Option<Span>),
    SetKeepTtl(Key, Bytes),
    SetMany(Vec<(Key, Bytes)>, Option<Span>),
    SetTagged(Key, Bytes, Span, Vec<Key>),
    RemoveTag(Key),
    Update(Key, Bytes),
    Remove(Key),
    RemoveMany(Vec<Key>),
    ContainsKey(Key),
    Ttl(Key),
    Expire(Key, Span),
    ExpireIf(Key, Span, u8),
    ExpireAt(Key, Span, bool),
    Extend(Key, Span),
    Persist(Key),
    ExpireNow(Key),
    Load(Key, Bytes, Option<Span>),
    FailingLoad(Key),
    Iterate,
    Len,
    Clear,
    Subscribe(Key),
    Receive(AfterEvent),
    Groups,
    RemoveGroup(Key),
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum AfterEvent {
    Ack,
    RetryIn(Span),
    Fail(Text),
    Keep,
}

/// A value and its tags.
type Entry = (Vec<u8>, Vec<String>);

struct Driver {
    cache: Cache<String, Vec<u8>>,
    settings: Settings,
    model: Model<String, Entry>,
    subscription: Option<LosslessEvents<String, Vec<u8>>>,
}

pub(crate) async fn run(
    client: &Client,
    name: &str,
    settings: Settings,
    Sequence(calls): Sequence<Call>,
) -> Result<(), Error> {
    let Some(cache) = built(name, build(client, name, &settings)) else { return Ok(()) };
    let mut driver = Driver { cache, settings, model: Model::new(), subscription: None };
    for call in calls.into_iter().take(MOST_CALLS) {
        driver.run(call).await?;
    }
    Ok(())
}

fn build(
    client: &Client,
    name: &str,
    settings: &Settings,
) -> Result<Cache<String, Vec<u8>>, Error> {
    let mut builder = Cache::builder(client, name)
        .format(Format::Raw)
        .jitter(if settings.has_jitter { 0.5 } else { 0.0 })
        .refresh_ahead(if settings.refreshes_ahead { 1e9 } else { 0.0 })
        .poll_every(Duration::from_millis(1));
    if let Some(ttl) = settings.time_to_live {
        builder = builder.time_to_live(ttl.duration());
    }
    if let Some(retention) = settings.events {
        builder = builder.events(retention.duration());
    }
    if let Some(window) = settings.stale_while_revalidate {
        builder = builder.stale_while_revalidate(window.duration());
    }
    if let Some(ttl) = settings.negative_ttl {
        builder = builder.negative_ttl(ttl.above_zero());
    }
    if let Some(lease) = settings.lease {
        builder = builder.lease(lease.duration().max(Duration::from_millis(1)));
    }
    if let Some(entries) = settings.near {
        builder = builder.near(entries.count().max(1));
    }
    if let Some(age) = settings.near_max_age {
        builder = builder.near_max_age(age.duration());
    }
    builder.build()
}

impl Driver {
    async fn run(&mut self, call: Call) -> Result<(), Error> {
        match call {
            Call::Get(_) | Call::GetEx(..) | Call::GetMany(_) => self.read(call).await,
            Call::ContainsKey(_) | Call::Ttl(_) | Call::Iterate | Call::Len => {
                self.inspect(call).await
            }
            Call::Set(..)
            | Call::SetEx(..)
            | Call::SetNx(..)
            | Call::SetKeepTtl(..)
            | Call::SetMany(..)
            | Call::SetTagged(..)
            | Call::Update(..) => self.write(call).await,
            Call::Remove(_)
            | Call::RemoveMany(_)
            | Call::RemoveTag(_)
            | Call::ExpireNow(_)
            | Call::Clear => self.remove(call).await,
            Call::Expire(..)
            | Call::ExpireIf(..)
            | Call::ExpireAt(..)
            | Call::Extend(..)
            | Call::Persist(_) => self.change_deadline(call).await,
            Call::Load(..) | Call::FailingLoad(_) => self.load(call).await,
            Call::Subscribe(_) | Call::Receive(_) | Call::Groups | Call::RemoveGroup(_) => {
                self.receive(call).await
            }
        }
    }

    async fn read(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::Get(key) => {
                let key = key.0;
                if let Some(found) = outcome(&call, cache.get(&key).await)? {
                    self.check(&call, &key, &found);
                }
            }
            Call::GetEx(key, ttl) => {
                let key = key.0;
                if let Some(found) = outcome(&call, cache.get_ex(&key, ttl.duration()).await)? {
                    self.check(&call, &key, &found);
                    self.keep_if(key, ttl.is_long());
                }
            }
            Call::GetMany(keys) => {
                let keys: Vec<_> = keys.into_iter().map(|key| key.0).collect();
                let found = outcome(&call, cache.get_many(&keys).await)?.unwrap_or_default();
                for (key, found) in keys.iter().zip(found) {
                    self.check(&call, key, &found);
                }
            }
            _ => unreachable!("not a read"),
        }
        Ok(())
    }

    async fn inspect(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::ContainsKey(key) => {
                let key = key.0;
                if let Some(contains) = outcome(&call, cache.contains_key(&key).await)? {
                    assert!(self.model.of(&key).may_exist(contains), "{call:?}");
                }
            }
            Call::Ttl(key) => {
                let key = key.0;
                if let Some(ttl) = outcome(&call, cache.ttl(&key).await)? {
                    assert!(
                        self.model.of(&key).may_exist(ttl != Ttl::Missing),
                        "{call:?}: {ttl:?}"
                    );
                }
            }
            Call::Iterate => {
                let mut found = BTreeMap::new();
                let mut entries = cache.iter();
                while let Some(entry) = entries.next().await {
                    let Some((key, value)) = outcome(&call, entry)? else { continue };
                    self.check(&call, &key, &Some(value.clone()));
                    found.insert(key, value);
                }
                for (key, _) in self.model.present() {
                    assert!(found.contains_key(key), "{call:?}: {key:?} is missing");
                }
            }
            Call::Len => {
                let len = outcome(&call, cache.len().await)?.unwrap_or(usize::MAX);
                assert!(len >= self.model.present().count(), "{call:?}: {len}");
            }
            _ => unreachable!("not an inspection"),
        }
        Ok(())
    }

    async fn write(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::Set(key, value) => {
                let (key, value) = (key.0, value.0);
                let replaced = cache.set(key.clone(), value.clone()).await;
                if let Some(replaced) = outcome(&call, replaced)? {
                    self.check(&call, &key, &replaced);
                    self.written(key, value, None);
                }
            }
            Call::SetEx(key, value, ttl) => {
                let (key, value) = (key.0, value.0);
                let replaced = cache.set_ex(key.clone(), value.clone(), ttl.duration()).await;
                if let Some(replaced) = outcome(&call, replaced)? {
                    self.check(&call, &key, &replaced);
                    self.written(key, value, Some(ttl));
                }
            }
            Call::SetNx(key, value, ttl) => {
                let (key, value) = (key.0, value.0);
                let is_set = cache.set_nx(key.clone(), value.clone(), ttl.map(Span::duration));
                if let Some(is_set) = outcome(&call, is_set.await)? {
                    assert!(self.model.of(&key).may_exist(!is_set), "{call:?}: {is_set}");
                    if is_set {
                        self.written(key, value, ttl);
                    }
                }
            }
            Call::SetKeepTtl(key, value) => {
                let (key, value) = (key.0, value.0);
                let replaced = cache.set_keep_ttl(key.clone(), value.clone()).await;
                if let Some(replaced) = outcome(&call, replaced)? {
                    self.check(&call, &key, &replaced);
                    match self.model.of(&key) {
                        // Its TTL is long.
                        Known::Present(_) => self.model.set(key, Known::Present((value, vec![]))),
                        Known::Missing => self.written(key, value, None),
                        Known::Unknown => {}
                    }
                }
            }
            Call::SetMany(entries, ttl) => {
                let entries: Vec<_> =
                    entries.into_iter().map(|(key, value)| (key.0, value.0)).collect();
                let set = cache.set_many(entries.clone(), ttl.map(Span::duration)).await;
                let is_done = outcome(&call, set)?.is_some();
                for (key, value) in entries {
                    match is_done {
                        true => self.written(key, value, ttl),
                        false => self.model.set(key, Known::Unknown),
                    }
                }
            }
            Call::SetTagged(key, value, ttl, tags) => {
                let (key, value) = (key.0, value.0);
                let tags: Vec<_> = tags.into_iter().map(|key| key.0).collect();
                let replaced =
                    cache.set_tagged(key.clone(), value.clone(), ttl.duration(), tags.clone());
                if let Some(replaced) = outcome(&call, replaced.await)? {
                    self.check(&call, &key, &replaced);
                    self.written(key.clone(), value.clone(), Some(ttl));
                    if let Known::Present(_) = self.model.of(&key) {
                        self.model.set(key, Known::Present((value, tags)));
                    }
                }
            }
            Call::Update(key, value) => {
                let (key, value) = (key.0, value.0);
                let updated = cache.update(&key, |old| old.clone_from(&value)).await;
                match outcome(&call, updated)? {
                    Some(updated) => {
                        assert!(self.model.of(&key).may_exist(updated.is_some()), "{call:?}");
                        if let Known::Present((_, tags)) = self.model.of(&key) {
                            self.model.set(key, Known::Present((value, tags)));
                        }
                    }
                    None => self.model.set(key, Known::Unknown),
                }
            }
            _ => unreachable!("not a write"),
        }
        Ok(())
    }

    async fn remove(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::Remove(key) | Call::ExpireNow(key) => {
                let key = key.0;
                let removed = match &call {
                    Call::Remove(_) => cache.remove(&key).await,
                    _ => cache.expire_now(&key).await,
                };
                if let Some(removed) = outcome(&call, removed)? {
                    self.check(&call, &key, &removed);
                    self.model.set(key, Known::Missing);
                }
            }
            Call::RemoveMany(keys) => {
                let keys: Vec<_> = keys.into_iter().map(|key| key.0).collect();
                let is_done = outcome(&call, cache.remove_many(&keys).await)?.is_some();
                for key in keys {
                    self.model.set(key, if is_done { Known::Missing } else { Known::Unknown });
                }
            }
            Call::RemoveTag(tag) => {
                let tag = tag.0;
                if outcome(&call, cache.remove_tag(&tag).await)?.is_some() {
                    let tagged = self.model.present().filter(|(_, (_, tags))| tags.contains(&tag));
                    let tagged: Vec<_> = tagged.map(|(key, _)| key.clone()).collect();
                    tagged.into_iter().for_each(|key| self.model.set(key, Known::Missing));
                }
            }
            Call::Clear => {
                outcome(&call, cache.clear().await)?;
                self.model.clear();
            }
            _ => unreachable!("not a removal"),
        }
        Ok(())
    }

    async fn change_deadline(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        let (key, changed, is_sure, is_long) = match call.clone() {
            Call::Expire(key, ttl) => {
                let key = key.0;
                let changed = cache.expire(&key, ttl.duration()).await;
                (key, changed, true, ttl.is_long())
            }
            Call::ExpireIf(key, ttl, when) => {
                let all = [When::NoTtl, When::HasTtl, When::Later, When::Sooner];
                let (key, when) = (key.0, all[usize::from(when) % all.len()]);
                let changed = cache.expire_if(&key, ttl.duration(), when).await;
                (key, changed, false, ttl.is_long())
            }
            Call::ExpireAt(key, by, is_later) => {
                let (key, by, now) = (key.0, by.duration(), Instant::now());
                let at = if is_later { now.checked_add(by) } else { now.checked_sub(by) };
                let at = at.unwrap_or(now);
                (key.clone(), cache.expire_at(&key, at).await, true, at >= now + LONG)
            }
            Call::Extend(key, more) => {
                let key = key.0;
                (key.clone(), cache.extend(&key, more.duration()).await, false, true)
            }
            Call::Persist(key) => {
                let key = key.0;
                (key.clone(), cache.persist(&key).await, false, true)
            }
            _ => unreachable!("not a change of a deadline"),
        };
        if let Some(is_changed) = outcome(&call, changed)? {
            let is_possible = match self.model.of(&key) {
                Known::Missing => !is_changed,
                Known::Present(_) => is_changed || !is_sure,
                Known::Unknown => true,
            };
            assert!(is_possible, "{call:?}: {is_changed}");
            self.keep_if(key, is_long || !is_changed);
        }
        Ok(())
    }

    async fn load(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::Load(key, value, ttl) => {
                let (key, value) = (key.0, value.0);
                let loaded = value.clone();
                let got =
                    cache.get_or_set_with(&key, ttl.map(Span::duration), async move || loaded);
                let Some(got) = outcome(&call, got.await)? else {
                    self.model.set(key, Known::Unknown);
                    return Ok(());
                };
                match self.model.of(&key) {
                    Known::Present((known, _)) => {
                        assert_eq!(got, known, "{call:?}");
                        // A refresh ahead may replace it.
                        self.keep_if(key, !self.settings.refreshes_ahead);
                    }
                    _ if got == value => {
                        self.written(key.clone(), value, ttl);
                        self.keep_if(key, !self.settings.refreshes_ahead);
                    }
                    _ => self.model.set(key, Known::Unknown),
                }
            }
            Call::FailingLoad(key) => {
                let key = key.0;
                let failing = async || Err::<Vec<u8>, _>("down");
                let got = cache.get_or_try_set_with(&key, LONG, failing).await;
                if let Some(Ok(got)) = outcome(&call, got)?
                    && let Known::Present((known, _)) = self.model.of(&key)
                {
                    assert_eq!(got, known, "{call:?}");
                }
            }
            _ => unreachable!("not a load"),
        }
        Ok(())
    }

    async fn receive(&mut self, call: Call) -> Result<(), Error> {
        let cache = &self.cache;
        match call.clone() {
            Call::Subscribe(group) => {
                let group = group.0;
                let subscription = cache.events_lossless(&group).await;
                let Some(subscription) = self.with_events(&call, subscription)? else {
                    return Ok(());
                };
                self.subscription = Some(subscription);
                let groups = outcome(&call, self.cache.groups().await)?.unwrap_or_default();
                assert!(groups.contains(&group), "{call:?}: {groups:?}");
            }
            Call::Receive(after) => {
                let Some(subscription) = &mut self.subscription else { return Ok(()) };
                match timeout(SHORT, subscription.recv()).await {
                    Err(_) => return Ok(()),
                    Ok(None) | Ok(Some(Err(Error::GroupRemoved))) => {
                        self.subscription = None;
                        return Ok(());
                    }
                    Ok(Some(Err(Error::Missed(_)))) => {}
                    Ok(Some(event)) => _ = outcome(&call, event)?,
                }
                match after {
                    AfterEvent::Ack => _ = outcome(&call, subscription.ack().await)?,
                    AfterEvent::RetryIn(delay) => {
                        outcome(&call, subscription.retry_in(delay.duration()).await)?;
                    }
                    AfterEvent::Fail(reason) => {
                        outcome(&call, subscription.fail(reason.text()).await)?;
                    }
                    AfterEvent::Keep => {}
                }
            }
            Call::Groups => {
                let groups = cache.groups().await;
                self.with_events(&call, groups)?;
            }
            Call::RemoveGroup(group) => {
                let removed = cache.remove_group(&group.0).await;
                self.with_events(&call, removed)?;
            }
            _ => unreachable!("not about events"),
        }
        Ok(())
    }

    /// Returns the value of a call that a cache without events refuses.
    fn with_events<T>(&self, call: &Call, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(Error::NoEvents) if self.settings.events.is_none() => Ok(None),
            result => outcome(call, result),
        }
    }

    fn check(&self, call: &Call, key: &String, found: &Option<Vec<u8>>) {
        let known = match self.model.of(key) {
            Known::Present((value, _)) => Known::Present(value),
            Known::Missing => Known::Missing,
            Known::Unknown => Known::Unknown,
        };
        assert!(known.is(found), "{call:?}: {key:?} is {found:?}, known: {known:?}");
    }

    /// A value was written with this TTL, or the default one.
    fn written(&mut self, key: String, value: Vec<u8>, ttl: Option<Span>) {
        let ttl = ttl.or(self.settings.time_to_live).map(Span::duration);
        let shortest = if self.settings.has_jitter { 2 * LONG } else { LONG };
        let is_long = ttl.is_none_or(|ttl| ttl >= shortest);
        self.model.set(key, if is_long { Known::Present((value, vec![])) } else { Known::Unknown });
    }

    /// An entry that was there is still known if `is_known`.
    fn keep_if(&mut self, key: String, is_known: bool) {
        if !is_known && self.model.of(&key) != Known::Missing {
            self.model.set(key, Known::Unknown);
        }
    }
}
