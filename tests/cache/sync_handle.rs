//! `SyncCache` does what `Cache` does: random sequences on two caches that differ in nothing but the handle.

use std::time::Duration;

use fleeting::{Cache, Cause, Op, Sweep, SyncCache, When};
use foldhash::fast::FixedState;
use futures::FutureExt;
use proptest::{collection::vec, prelude::*};
use tokio::{
    task::unconstrained,
    time::{Instant, advance},
};

use crate::sequences::config;

type Key = u8;
type Value = u32;
type Handle = Cache<Key, Value, FixedState>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(Key),
    GetEx(Key, u8),
    GetWithTtl(Key),
    Set(Key, Value),
    SetEx(Key, Value, u8),
    SetNx(Key, Value, Option<u8>),
    SetKeepTtl(Key, Value),
    SetTagged(Key, Value, u8, bool),
    SetMany(Key, u8, Value),
    Remove(Key),
    RemoveMany(Key, u8),
    RemoveIf(u8),
    RemoveTag(bool),
    Clear,
    Contains(Key),
    Ttl(Key),
    Expire(Key, u8),
    ExpireIf(Key, u8, u8),
    ExpireAt(Key, i8),
    Extend(Key, u8),
    Persist(Key),
    ExpireNow(Key),
    Update(Key, Value),
    Compute(Key, u8, Value),
    GetMany(Key, u8),
    Load(Key, u8, Value),
    TryLoad(Key, u8, Result<Value, u8>),
    Look,
    Advance(u8),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let key = || 0..12_u8;
    let ttl = || prop_oneof![Just(0_u8), 1..5_u8, 5..60_u8];
    prop_oneof![
        3 => key().prop_map(Get),
        1 => (key(), ttl()).prop_map(|(key, ttl)| GetEx(key, ttl)),
        1 => key().prop_map(GetWithTtl),
        1 => (key(), any::<Value>()).prop_map(|(key, value)| Set(key, value)),
        3 => (key(), any::<Value>(), ttl()).prop_map(|(key, value, ttl)| SetEx(key, value, ttl)),
        1 => (key(), any::<Value>(), proptest::option::of(ttl())).prop_map(|(k, v, t)| SetNx(k, v, t)),
        1 => (key(), any::<Value>()).prop_map(|(key, value)| SetKeepTtl(key, value)),
        2 => (key(), any::<Value>(), ttl(), any::<bool>()).prop_map(|(k, v, t, tag)| SetTagged(k, v, t, tag)),
        1 => (key(), 0..9_u8, any::<Value>()).prop_map(|(key, n, value)| SetMany(key, n, value)),
        1 => key().prop_map(Remove),
        1 => (key(), 0..9_u8).prop_map(|(key, n)| RemoveMany(key, n)),
        1 => (2..5_u8).prop_map(RemoveIf),
        1 => any::<bool>().prop_map(RemoveTag),
        1 => Just(Clear),
        1 => key().prop_map(Contains),
        1 => key().prop_map(Ttl),
        1 => (key(), ttl()).prop_map(|(key, ttl)| Expire(key, ttl)),
        1 => (key(), ttl(), 0..4_u8).prop_map(|(key, ttl, when)| ExpireIf(key, ttl, when)),
        1 => (key(), any::<i8>()).prop_map(|(key, at)| ExpireAt(key, at)),
        1 => (key(), ttl()).prop_map(|(key, ttl)| Extend(key, ttl)),
        1 => key().prop_map(Persist),
        1 => key().prop_map(ExpireNow),
        1 => (key(), any::<Value>()).prop_map(|(key, value)| Update(key, value)),
        2 => (key(), 0..5_u8, any::<Value>()).prop_map(|(key, op, value)| Compute(key, op, value)),
        1 => (key(), 0..9_u8).prop_map(|(key, n)| GetMany(key, n)),
        2 => (key(), ttl(), any::<Value>()).prop_map(|(key, ttl, value)| Load(key, ttl, value)),
        2 => (key(), ttl(), prop_oneof![any::<Value>().prop_map(Ok), any::<u8>().prop_map(Err)])
            .prop_map(|(key, ttl, result)| TryLoad(key, ttl, result)),
        1 => Just(Look),
        2 => ttl().prop_map(Advance),
    ]
}

fn seconds(ttl: u8) -> Duration {
    Duration::from_secs(ttl.into())
}

fn when(number: u8) -> When {
    [When::NoTtl, When::HasTtl, When::Later, When::Sooner][number as usize]
}

fn change(number: u8, value: Value, live: Option<&Value>) -> Op<Value> {
    match number {
        0 => Op::Keep,
        1 => Op::Set(live.map_or(value, |live| live ^ value)),
        2 => Op::SetEx(value, seconds(7)),
        3 => Op::SetKeepTtl(value),
        _ => Op::Remove,
    }
}

fn tag(number: bool) -> &'static str {
    if number { "a" } else { "b" }
}

fn at(offset: i8) -> Instant {
    let now = Instant::now() + seconds(127);
    now.checked_sub(seconds((127 - i16::from(offset)) as u8)).expect("the clock started earlier")
}

async fn run_async(cache: &Handle, step: Step) -> String {
    match step {
        Step::Get(key) => format!("{:?}", cache.get(&key).await),
        Step::GetEx(key, ttl) => format!("{:?}", cache.get_ex(&key, seconds(ttl)).await),
        Step::GetWithTtl(key) => format!("{:?}", cache.get_with_ttl(&key).await),
        Step::Set(key, value) => format!("{:?}", cache.set(key, value).await),
        Step::SetEx(key, value, ttl) => {
            format!("{:?}", cache.set_ex(key, value, seconds(ttl)).await)
        }
        Step::SetNx(key, value, ttl) => {
            format!("{:?}", cache.set_nx(key, value, ttl.map(seconds)).await)
        }
        Step::SetKeepTtl(key, value) => format!("{:?}", cache.set_keep_ttl(key, value).await),
        Step::SetTagged(key, value, ttl, name) => {
            format!("{:?}", cache.set_tagged(key, value, seconds(ttl), [tag(name)]).await)
        }
        Step::SetMany(key, n, value) => {
            let entries = (key..key + n).map(|key| (key, value));
            format!("{:?}", cache.set_many(entries, Some(seconds(n))).await)
        }
        Step::Remove(key) => format!("{:?}", cache.remove(&key).await),
        Step::RemoveMany(key, n) => {
            let keys: Vec<Key> = (key..key + n).collect();
            format!("{:?}", cache.remove_many(&keys).await)
        }
        Step::RemoveIf(n) => format!("{:?}", cache.remove_if(|key, _| key % n == 0).await),
        Step::RemoveTag(name) => format!("{:?}", cache.remove_tag(tag(name)).await),
        Step::Clear => format!("{:?}", cache.clear().await),
        Step::Contains(key) => format!("{:?}", cache.contains_key(&key).await),
        Step::Ttl(key) => format!("{:?}", cache.ttl(&key).await),
        Step::Expire(key, ttl) => format!("{:?}", cache.expire(&key, seconds(ttl)).await),
        Step::ExpireIf(key, ttl, number) => {
            format!("{:?}", cache.expire_if(&key, seconds(ttl), when(number)).await)
        }
        Step::ExpireAt(key, offset) => format!("{:?}", cache.expire_at(&key, at(offset)).await),
        Step::Extend(key, more) => format!("{:?}", cache.extend(&key, seconds(more)).await),
        Step::Persist(key) => format!("{:?}", cache.persist(&key).await),
        Step::ExpireNow(key) => format!("{:?}", cache.expire_now(&key).await),
        Step::Update(key, value) => {
            format!("{:?}", cache.update(&key, |live| std::mem::replace(live, value)).await)
        }
        Step::Compute(key, op, value) => {
            format!("{:?}", cache.compute(&key, |live| change(op, value, live)).await)
        }
        Step::GetMany(key, n) => {
            let keys: Vec<Key> = (key..key + n).collect();
            format!("{:?}", cache.get_many(&keys).await)
        }
        // The form with a future: it never refreshes in the background, either.
        Step::Load(key, ttl, value) => {
            format!("{:?}", cache.get_or_set(&key, seconds(ttl), async { value }).await)
        }
        Step::TryLoad(key, ttl, result) => {
            format!("{:?}", cache.get_or_try_set(&key, seconds(ttl), async { result }).await)
        }
        Step::Look => look(cache.sync()),
        Step::Advance(_) => String::new(),
    }
}

fn run_sync(cache: &SyncCache<Key, Value, FixedState>, step: Step) -> String {
    match step {
        Step::Get(key) => format!("{:?}", cache.get(&key)),
        Step::GetEx(key, ttl) => format!("{:?}", cache.get_ex(&key, seconds(ttl))),
        Step::GetWithTtl(key) => format!("{:?}", cache.get_with_ttl(&key)),
        Step::Set(key, value) => format!("{:?}", cache.set(key, value)),
        Step::SetEx(key, value, ttl) => format!("{:?}", cache.set_ex(key, value, seconds(ttl))),
        Step::SetNx(key, value, ttl) => format!("{:?}", cache.set_nx(key, value, ttl.map(seconds))),
        Step::SetKeepTtl(key, value) => format!("{:?}", cache.set_keep_ttl(key, value)),
        Step::SetTagged(key, value, ttl, name) => {
            format!("{:?}", cache.set_tagged(key, value, seconds(ttl), [tag(name)]))
        }
        Step::SetMany(key, n, value) => {
            let entries = (key..key + n).map(|key| (key, value));
            format!("{:?}", cache.set_many(entries, Some(seconds(n))))
        }
        Step::Remove(key) => format!("{:?}", cache.remove(&key)),
        Step::RemoveMany(key, n) => {
            let keys: Vec<Key> = (key..key + n).collect();
            format!("{:?}", cache.remove_many(&keys))
        }
        Step::RemoveIf(n) => format!("{:?}", cache.remove_if(|key, _| key % n == 0)),
        Step::RemoveTag(name) => format!("{:?}", cache.remove_tag(tag(name))),
        Step::Clear => format!("{:?}", cache.clear()),
        Step::Contains(key) => format!("{:?}", cache.contains_key(&key)),
        Step::Ttl(key) => format!("{:?}", cache.ttl(&key)),
        Step::Expire(key, ttl) => format!("{:?}", cache.expire(&key, seconds(ttl))),
        Step::ExpireIf(key, ttl, number) => {
            format!("{:?}", cache.expire_if(&key, seconds(ttl), when(number)))
        }
        Step::ExpireAt(key, offset) => format!("{:?}", cache.expire_at(&key, at(offset))),
        Step::Extend(key, more) => format!("{:?}", cache.extend(&key, seconds(more))),
        Step::Persist(key) => format!("{:?}", cache.persist(&key)),
        Step::ExpireNow(key) => format!("{:?}", cache.expire_now(&key)),
        Step::Update(key, value) => {
            format!("{:?}", cache.update(&key, |live| std::mem::replace(live, value)))
        }
        Step::Compute(key, op, value) => {
            format!("{:?}", cache.compute(&key, |live| change(op, value, live)))
        }
        Step::GetMany(key, n) => {
            let keys: Vec<Key> = (key..key + n).collect();
            format!("{:?}", cache.get_many(&keys))
        }
        Step::Load(key, ttl, value) => {
            format!("{:?}", cache.get_or_set_with(&key, seconds(ttl), || value))
        }
        Step::TryLoad(key, ttl, result) => {
            format!("{:?}", cache.get_or_try_set_with(&key, seconds(ttl), || result))
        }
        Step::Look => look(cache),
        Step::Advance(_) => String::new(),
    }
}

/// Returns what the methods tell that were never async. Expired entries may be resident or not.
fn look(cache: &SyncCache<Key, Value, FixedState>) -> String {
    let mut entries: Vec<_> = cache.iter().collect();
    entries.sort_unstable();
    let (mut keys, mut values): (Vec<_>, Vec<_>) =
        (cache.keys().collect(), cache.values().collect());
    keys.sort_unstable();
    values.sort_unstable();
    assert_eq!(keys, entries.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    assert_eq!(values.len(), entries.len());
    let resident = cache.stats().resident;
    assert_eq!((cache.len(), cache.is_empty()), (resident, resident == 0));
    format!("{entries:?} {} {} {}", cache.live_len(), cache.weight(), cache.name())
}

#[test]
fn both_handles_return_and_publish_the_same() {
    let settings = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    proptest!(config(400, 49), |(settings in settings, steps in vec(step(), 1..80))| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(compare(settings, steps))?;
    });
}

async fn compare(
    (is_bounded, has_idle, keeps_errors, is_stale): (bool, bool, bool, bool),
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let build = || {
        let mut builder = Cache::builder()
            .name("both")
            .sweep(Sweep::default().seed(7))
            .publish([Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced])
            .time_to_live(seconds(30))
            .hasher(FixedState::default());
        if is_bounded {
            builder = builder.max_entries(8);
        }
        if has_idle {
            builder = builder.time_to_idle(seconds(20));
        }
        if keeps_errors {
            builder = builder.negative_ttl(seconds(3));
        }
        if is_stale {
            builder = builder.stale_if_error(seconds(5));
        }
        builder.build()
    };
    let (cache, other): (Handle, Handle) = (build(), build());
    let (mut events, mut other_events) =
        (cache.events_lossless(10_000), other.events_lossless(10_000));
    for step in &steps {
        if let Step::Advance(by) = *step {
            advance(seconds(by)).await;
            // In the same order: both sweep at their ticks, and the test runs when they have.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (result, other_result) =
            (run_async(&cache, *step).await, run_sync(other.sync(), *step));
        prop_assert_eq!(result, other_result, "{:?} of {:?}", step, steps);
        let mut published = [Vec::new(), Vec::new()];
        for (events, published) in [&mut events, &mut other_events].into_iter().zip(&mut published)
        {
            // Without the budget, with which `recv` may be pending although there is an event.
            while let Some(Some(event)) = unconstrained(events.recv()).now_or_never() {
                published.push((event.key, event.value, event.cause));
            }
        }
        let [published, other_published] = published;
        prop_assert_eq!(published, other_published, "{:?} of {:?}", step, steps);
    }
    let (stats, other_stats) = (cache.stats(), other.sync().stats());
    prop_assert_eq!(
        format!("{:?}", (stats.hits, stats.misses, stats.resident, stats.evicted)),
        format!(
            "{:?}",
            (other_stats.hits, other_stats.misses, other_stats.resident, other_stats.evicted)
        )
    );
    Ok(())
}

/// A write that evicts thousands of entries defers none of them to the next call.
#[tokio::test]
async fn write_evicts_all_that_its_weight_needs() {
    let cache = Cache::builder().max_weight(100_000, |_: &u32, weight: &u32| *weight).build();
    let cache = cache.sync();
    cache.set_many((1..=100_000).map(|key| (key, 1)), None);
    assert!(cache.weight() <= 100_000 && cache.len() > 90_000);
    cache.set(0, 100_000);
    assert_eq!((cache.weight(), cache.len(), cache.get(&0)), (100_000, 1, Some(100_000)));
}

/// The handle is two words, as `Cache` is, and can be used wherever that can.
#[tokio::test]
async fn handles_convert_into_each_other() {
    fn is_shared<T: Send + Sync + Clone + std::fmt::Debug + 'static>(_: &T) {}
    let cache: Cache<u64, u64> = Cache::builder().name("both").build();
    let sync = cache.sync().clone();
    is_shared(&sync);
    sync.set(1, 2);
    let again = sync.async_cache();
    assert_eq!(again.get(&1).await, Some(2));
    assert_eq!((again.name(), sync.name()), ("both", "both"));
    assert_eq!(format!("{sync:?}"), format!("{cache:?}"));
    let weak = cache.downgrade();
    drop((cache, again));
    assert!(weak.upgrade().is_some(), "a `SyncCache` keeps the cache alive");
    drop(sync);
    assert!(weak.upgrade().is_none());
}
