//! Tags, beside sweeps that overlap, loads and the end.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    iter::from_fn,
    sync::Arc,
    time::Duration,
};

use fleeting::{Cache, Cause, Freshness, Sweep};
use futures::FutureExt;
use tokio::{
    sync::Semaphore,
    task::unconstrained,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task::spawn};

const MINUTE: Duration = Duration::from_secs(60);

/// The first had passed the value by when its tag was removed, and ends last: it has not looked for that tag.
#[tokio::test(start_paused = true)]
async fn of_two_sweeps_at_a_time_none_forgets_a_tag() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).shards(64).build();
    for key in 0..1_000 {
        cache.set_tagged(key, key, MINUTE, ["first"]).await;
    }
    cache.remove_tag("first").await;
    let mut slow = spawn(cache.sweep());
    assert_pending!(slow.poll());
    cache.sweep().await;
    assert_eq!(cache.len(), 0);
    for key in 0..1_000 {
        cache.set_tagged(key, key, MINUTE, ["second"]).await;
    }
    cache.remove_tag("second").await;
    while slow.poll().is_pending() {}
    drop(slow);
    for key in 0..1_000 {
        assert_eq!(cache.get(&key).await, None, "{key} was removed");
    }
    cache.sweep().await;
    assert_eq!((cache.len(), cache.stats().removed), (0, 2_000));
}

#[tokio::test(start_paused = true)]
async fn what_a_tag_removed_leaves_before_the_streams_end() {
    let cache: Cache<u32, u32> =
        Cache::builder().sweep(Sweep::manual()).publish([Cause::Removed]).build();
    let mut events = cache.events_lossless(1_000);
    for key in 0..500 {
        cache.set_tagged(key, key, MINUTE, ["tag"]).await;
    }
    cache.remove_tag("tag").await;
    cache.shutdown().await;
    let mut told = 0;
    while events.recv().await.is_some() {
        told += 1;
    }
    assert_eq!((told, cache.len()), (500, 0));
}

/// Whoever sees first that it was removed: what was being loaded then is older.
#[tokio::test(start_paused = true)]
async fn a_tag_that_is_removed_wins_over_a_load_ahead() {
    for sweeps in [false, true] {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
        let cache = builder.refresh_ahead(1e9).build();
        let gate = Arc::new(Semaphore::new(0));
        let load = |value| {
            let gate = gate.clone();
            async move || {
                sleep(Duration::from_millis(1)).await;
                gate.acquire().await.unwrap().forget();
                value
            }
        };
        // How long a load takes must be known.
        gate.add_permits(1);
        cache.get_or_set_with(&0, MINUTE, load(0)).await;
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        advance(MINUTE / 2).await;
        assert_eq!(cache.get_or_set_with(&1, MINUTE, load(2)).await, 1);
        // It loads by now.
        sleep(Duration::from_millis(10)).await;
        cache.remove_tag("tag").await;
        match sweeps {
            true => _ = cache.sweep().await,
            false => assert_eq!(cache.get(&1).await, None),
        }
        gate.add_permits(1);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(cache.stats().loads, 2, "it was loaded ahead");
        assert_eq!(cache.get(&1).await, None, "sweeps {sweeps}: older than the removal");
    }
}

/// Those who wait, for each of the verbs that do.
#[tokio::test(start_paused = true)]
async fn who_waits_hears_of_a_tag_that_is_removed() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).publish([]).build();
    cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
    let mut leaves = spawn(cache.expired(&1));
    assert_pending!(leaves.poll());
    cache.remove_tag("tag").await;
    let mut comes = spawn(cache.wait_for(&1));
    assert_pending!(comes.poll());
    let event = assert_ready!(leaves.poll()).unwrap();
    assert_eq!((event.value, event.cause), (1, Cause::Removed));
    cache.set_tagged(1, 2, MINUTE, ["tag"]).await;
    assert_ready_eq!(comes.poll(), 2);
}

/// As one that has died before may be stale, and one that was removed may not.
#[tokio::test(start_paused = true)]
async fn what_a_tag_removed_is_not_stale() {
    for dies_first in [false, true] {
        let cache: Cache<u32, u32> = Cache::builder()
            .sweep(Sweep::manual())
            .stale_while_revalidate(MINUTE)
            .stale_if_error(MINUTE)
            .build();
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        if dies_first {
            advance(MINUTE).await;
        }
        cache.remove_tag("tag").await;
        advance(MINUTE).await;
        let fails = async || Err::<u32, _>("down");
        let got = cache.get_or_try_set_with_freshness(&1, MINUTE, fails).await;
        assert!(got.is_err(), "{got:?}");
        let load = async || Ok::<_, &str>(2);
        let got = cache.get_or_try_set_with_freshness(&1, MINUTE, load).await;
        assert_eq!(got, Ok((2, Freshness::Loaded)));
        assert_eq!(cache.get(&1).now_or_never().flatten(), Some(2));
    }
}

/// At the bound, those leave first whom nobody finds any more; without a sweep as far as they are met.
#[tokio::test(start_paused = true)]
async fn what_a_tag_removed_makes_room_first() {
    let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
    // The same in each run, and well mixed: where one kind crowds a part of a table, samples there meet that kind alone.
    let builder = builder.hasher(BuildHasherDefault::<DefaultHasher>::default());
    let cache = builder.max_entries(2_000).publish([Cause::Removed, Cause::Evicted]).build();
    let mut events = cache.events_lossless(10_000);
    for key in 0..1_000 {
        cache.set(key, key).await;
        cache.set_tagged(1_000_000 + key, key, MINUTE, ["tag"]).await;
    }
    cache.remove_tag("tag").await;
    for key in 0..500 {
        cache.set(1_000 + key, key).await;
    }
    let stats = cache.stats();
    assert_eq!((cache.len(), stats.removed + stats.evicted), (2_000, 500));
    assert!(stats.evicted < 50, "{} of the living have left", stats.evicted);
    while let Some(event) = events.recv().now_or_never().flatten() {
        assert_eq!(event.cause == Cause::Removed, event.key >= 1_000_000, "{event:?}");
    }
}

/// What was removed while it lived is told of as removed, however late and by whatever it leaves.
#[tokio::test(start_paused = true)]
async fn what_a_tag_removed_has_not_expired_since() {
    for bounded in [false, true] {
        for way in 0..7 {
            let builder = Cache::<u32, u32>::builder()
                .sweep(Sweep::manual())
                .publish([Cause::Expired, Cause::Removed]);
            let cache = if bounded { builder.max_entries(2).build() } else { builder.build() };
            let mut events = cache.events_lossless(100);
            cache.set(2, 2).await;
            cache.set_tagged(1, 1, Duration::from_secs(1), ["a"]).await;
            cache.remove_tag("a").await;
            advance(Duration::from_secs(2)).await;
            match way {
                0 => cache.clear().await,
                1 if bounded => drop(cache.set(3, 3).await),
                1 | 2 => drop(cache.sweep().await),
                3 => assert_eq!(cache.get(&1).await, None),
                4 => assert_eq!(cache.set(1, 3).await, None),
                5 => assert_eq!(cache.remove_many([&1]).await, 0),
                _ => cache.shutdown().await,
            }
            let told = from_fn(|| unconstrained(events.recv()).now_or_never().flatten());
            let told: Vec<_> = told.filter(|event| event.key == 1).collect();
            assert_eq!(told.len(), 1, "{way}");
            assert_eq!((told[0].value, told[0].cause), (1, Cause::Removed), "{way}");
            let stats = cache.stats();
            assert_eq!(stats.expired, 0, "{way}");
        }
    }
}
