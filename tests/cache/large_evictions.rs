//! Writes that evict very many entries: no poll evicts more than some, and the bound holds when the call returns.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fleeting::{Cache, Op, Sweep};

const LIGHT: u64 = 20_000;

/// Key of the heavy entry.
const HEAVY: u64 = u64::MAX;

/// The weight of an entry is its value.
async fn full_cache(ttl: Option<Duration>) -> Cache<u64, u32> {
    let cache =
        Cache::builder().max_weight(LIGHT, |_, weight| *weight).sweep(Sweep::manual()).build();
    cache.set_many((0..LIGHT).map(|key| (key, 1)), ttl).await;
    assert_eq!(cache.weight(), LIGHT);
    cache
}

/// Polls a call to its end. Returns its result and the number of polls.
fn polled<T>(call: impl Future<Output = T>) -> (T, usize) {
    let mut call = pin!(call);
    for polls in 1.. {
        if let Poll::Ready(result) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return (result, polls);
        }
    }
    unreachable!("the call ends")
}

fn assert_fits_in_several_polls<T>(cache: &Cache<u64, u32>, call: impl Future<Output = T>) -> T {
    let (result, polls) = polled(call);
    assert!((4..200).contains(&polls), "{polls} polls");
    assert!(cache.weight() <= LIGHT, "the weight is {}", cache.weight());
    result
}

#[tokio::test(start_paused = true)]
async fn set_evicts_very_many_entries_in_several_polls() {
    let cache = full_cache(None).await;
    assert_fits_in_several_polls(&cache, cache.set(HEAVY, LIGHT as u32 - 10));
    assert_eq!(cache.get(&HEAVY).await, Some(LIGHT as u32 - 10));
    assert!(cache.weight() > LIGHT - 64, "too much was evicted: {}", cache.weight());
}

#[tokio::test(start_paused = true)]
async fn every_write_evicts_very_many_entries_in_several_polls() {
    let heavy = LIGHT as u32 - 10;
    let cache = full_cache(None).await;
    assert_fits_in_several_polls(&cache, cache.set_ex(HEAVY, heavy, Duration::from_secs(9)));
    let cache = full_cache(None).await;
    assert_fits_in_several_polls(&cache, cache.set_keep_ttl(HEAVY, heavy));
    let cache = full_cache(None).await;
    assert!(assert_fits_in_several_polls(&cache, cache.set_nx(HEAVY, heavy, None)));
    let cache = full_cache(None).await;
    assert_fits_in_several_polls(&cache, cache.set_many([(HEAVY, heavy), (HEAVY - 1, 1)], None));
    let cache = full_cache(None).await;
    let tagged = cache.set_tagged(HEAVY, heavy, Duration::from_secs(9), ["tag"]);
    assert_fits_in_several_polls(&cache, tagged);
    let cache = full_cache(None).await;
    cache.set(HEAVY, 1).await;
    let updated = assert_fits_in_several_polls(
        &cache,
        cache.update(&HEAVY, |weight| {
            *weight = heavy;
            7
        }),
    );
    assert_eq!(updated, Some(7));
    let cache = full_cache(None).await;
    let set = assert_fits_in_several_polls(&cache, cache.compute(&HEAVY, |_| Op::Set(heavy)));
    assert_eq!(set, Some(heavy));
    let cache = full_cache(None).await;
    let set = cache.compute_with(&HEAVY, async |_| Op::Set(heavy));
    assert_eq!(assert_fits_in_several_polls(&cache, set), Some(heavy));
    let cache = full_cache(None).await;
    let load = cache.get_or_set_with(&HEAVY, Duration::from_secs(9), move || async move { heavy });
    assert_eq!(assert_fits_in_several_polls(&cache, load), heavy);
}

#[tokio::test(start_paused = true)]
async fn very_many_expired_entries_are_removed_in_several_polls() {
    let cache = full_cache(Some(Duration::from_secs(1))).await;
    cache.set(0, 1).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_fits_in_several_polls(&cache, cache.set(HEAVY, LIGHT as u32 - 10));
    // Live entries are evicted only after all expired ones.
    assert_eq!(cache.get(&0).await, Some(1));
    assert_eq!(cache.stats().evicted, 0);
}

#[tokio::test(start_paused = true)]
async fn next_write_evicts_for_a_cancelled_one() {
    let cache = full_cache(None).await;
    {
        let mut set = pin!(cache.set(HEAVY, LIGHT as u32 - 10));
        assert!(set.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(cache.weight() > LIGHT, "nothing is left to evict");
    assert_fits_in_several_polls(&cache, cache.set(7, 1));
}

#[tokio::test(start_paused = true)]
async fn next_sweep_evicts_for_a_cancelled_write() {
    let cache = full_cache(None).await;
    {
        let mut set = pin!(cache.set(HEAVY, LIGHT as u32 - 10));
        assert!(set.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(cache.weight() > LIGHT, "nothing is left to evict");
    cache.sweep().await;
    assert!(cache.weight() <= LIGHT, "the weight is {}", cache.weight());
}

/// The sweeper may sleep for a long time when the call is cancelled.
#[tokio::test(start_paused = true)]
async fn resting_sweeper_wakes_up_to_evict_for_a_cancelled_write() {
    let cache = Cache::builder().max_weight(LIGHT, |_: &u64, weight: &u32| *weight).build();
    cache.set_many((0..LIGHT).map(|key| (key, 1)), None).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    {
        let mut set = pin!(cache.set(HEAVY, LIGHT as u32 - 10));
        assert!(set.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(cache.weight() > LIGHT, "nothing is left to evict");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(cache.weight() <= LIGHT, "the weight is {}", cache.weight());
}

/// Polls a heavy write once and drops it.
fn cancel_heavy_write(cache: &Cache<u64, u32>, weight: u64) {
    let mut set = pin!(cache.set(HEAVY, weight as u32));
    assert!(set.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(cache.weight() > LIGHT, "nothing is left to evict");
}

#[tokio::test(start_paused = true)]
async fn write_that_evicts_for_another_one_keeps_both_entries() {
    let cache = full_cache(None).await;
    cancel_heavy_write(&cache, LIGHT - 1);
    assert_fits_in_several_polls(&cache, cache.set(HEAVY - 1, 1));
    assert_eq!(cache.get(&(HEAVY - 1)).await, Some(1));
    assert_eq!(cache.get(&HEAVY).await, Some(LIGHT as u32 - 1));
}

#[tokio::test(start_paused = true)]
async fn write_that_does_not_fit_with_a_cancelled_one_displaces_it() {
    let cache = full_cache(None).await;
    cancel_heavy_write(&cache, LIGHT);
    assert_fits_in_several_polls(&cache, cache.set(HEAVY - 1, 1));
    assert_eq!(cache.get(&(HEAVY - 1)).await, Some(1));
    assert_eq!(cache.get(&HEAVY).await, None);
}

/// The light writes are cancelled as well. Each of them has evicted an entry for its own.
#[tokio::test(start_paused = true)]
async fn light_writes_keep_the_entry_of_a_heavy_one_that_still_evicts() {
    let cache = Cache::builder().max_weight(LIGHT, |_: &u64, weight: &u32| *weight).shards(2);
    let cache = cache.sweep(Sweep::manual()).build();
    cache.set_many((0..LIGHT).map(|key| (key, 1)), None).await;
    cancel_heavy_write(&cache, LIGHT - 100);
    for key in LIGHT..LIGHT + 50 {
        let mut set = pin!(cache.set(key, 1));
        let poll = set.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "the evictions are deferred");
    }
    cache.sweep().await;
    assert_eq!(cache.get(&HEAVY).await, Some(LIGHT as u32 - 100));
    assert!(cache.weight() <= LIGHT, "the weight is {}", cache.weight());
}

#[tokio::test(start_paused = true)]
async fn update_that_evicts_for_a_cancelled_write_keeps_its_entry() {
    let cache = full_cache(None).await;
    cancel_heavy_write(&cache, LIGHT - 2);
    let survivor = cache.keys().find(|key| *key != HEAVY).unwrap();
    let updated = assert_fits_in_several_polls(
        &cache,
        cache.update(&survivor, |weight| {
            *weight = 2;
            "updated"
        }),
    );
    assert_eq!(updated, Some("updated"));
    assert_eq!(cache.get(&survivor).await, Some(2));
    assert_eq!(cache.get(&HEAVY).await, Some(LIGHT as u32 - 2));
}
