//! Tags, with overlapping sweeps, loads, waiters, bounds and shutdown.

use std::{
    future::pending,
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

/// The first sweep has passed the entries when the second tag is removed, and ends last: it has not searched for that
/// tag.
#[tokio::test(start_paused = true)]
async fn overlapping_sweeps_complete_every_remove_tag() {
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
async fn shutdown_publishes_entries_removed_by_tag() {
    let cache: Cache<u32, u32> =
        Cache::builder().sweep(Sweep::manual()).publish([Cause::Removed]).build();
    let mut events = cache.events_lossless(1_000);
    for key in 0..500 {
        cache.set_tagged(key, key, MINUTE, ["tag"]).await;
    }
    cache.remove_tag("tag").await;
    cache.shutdown().await;
    let mut received = 0;
    while events.recv().await.is_some() {
        received += 1;
    }
    assert_eq!((received, cache.len()), (500, 0));
}

/// Cause for which an entry is removed from memory while its value is loaded again, before or after its tag is removed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Removal {
    ByRead,
    BySweep,
    /// The deadline passes after the removal of the tag, and a write at the bound finds the entry.
    ByWriteAtTheBound,
    /// The entry is evicted before its tag is removed.
    ByEviction,
    /// The entry expires and is swept before its tag is removed.
    ByExpiry,
    /// The entry has expired and stays within its stale window.
    None,
}

const REMOVALS: [Removal; 6] = [
    Removal::ByRead,
    Removal::BySweep,
    Removal::ByWriteAtTheBound,
    Removal::ByEviction,
    Removal::ByExpiry,
    Removal::None,
];

/// Removes the tag of key 1, whose deadline is in half a minute.
async fn remove_tag_and_entry(cache: &Cache<u32, u32>, removal: Removal) {
    match removal {
        Removal::ByRead => {
            cache.remove_tag("tag").await;
            assert_eq!(cache.get(&1).await, None);
        }
        Removal::BySweep => {
            cache.remove_tag("tag").await;
            cache.sweep().await;
        }
        Removal::ByWriteAtTheBound => {
            cache.remove_tag("tag").await;
            advance(MINUTE / 2).await;
            cache.set(2, 2).await;
            cache.set(3, 3).await;
        }
        Removal::ByEviction => {
            cache.set_max_entries(1).await;
            cache.set(2, 2).await;
            cache.remove_tag("tag").await;
        }
        Removal::ByExpiry => {
            advance(MINUTE / 2).await;
            cache.sweep().await;
            cache.remove_tag("tag").await;
        }
        Removal::None => {
            advance(MINUTE / 2).await;
            cache.remove_tag("tag").await;
        }
    }
}

/// The load has started before the removal, so its value is older, no matter what removes the entry, and when.
#[tokio::test(start_paused = true)]
async fn remove_tag_takes_precedence_over_a_refresh() {
    for (removal, is_explicit) in
        REMOVALS.into_iter().flat_map(|removal| [(removal, false), (removal, true)])
    {
        let mut builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
        if removal == Removal::None {
            builder = builder.stale_while_revalidate(MINUTE);
        }
        let cache = builder.refresh_ahead(1e9).max_entries(2).build();
        let gate = Arc::new(Semaphore::new(0));
        let load = |value| {
            let gate = gate.clone();
            async move || {
                sleep(Duration::from_millis(1)).await;
                gate.acquire().await.unwrap().forget();
                value
            }
        };
        // One load first: refresh-ahead needs a duration of loads.
        gate.add_permits(1);
        cache.get_or_set_with(&0, MINUTE, load(0)).await;
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        advance(MINUTE / 2).await;
        let mut refresh = spawn(cache.refresh_with(&1, MINUTE, load(2)));
        if is_explicit {
            assert_pending!(refresh.poll());
        } else {
            assert_eq!(cache.get_or_set_with(&1, MINUTE, load(2)).await, 1);
        }
        // The load is running from here on.
        sleep(Duration::from_millis(10)).await;
        if is_explicit {
            assert_pending!(refresh.poll());
        }
        remove_tag_and_entry(&cache, removal).await;
        let next_load = async || 3;
        let mut next = spawn(cache.get_or_set_with(&1, MINUTE, next_load));
        assert_pending!(next.poll(), "{removal:?}: it waits until the older load has ended");
        gate.add_permits(1);
        if is_explicit {
            assert_ready_eq!(refresh.poll(), 2);
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(cache.stats().loads, 2, "the refresh has finished");
        assert_eq!(
            cache.get(&1).await,
            None,
            "{removal:?}, explicit {is_explicit}: the loaded value is older than the removal"
        );
        let got = assert_ready!(next.poll());
        assert_eq!(got, 3, "{removal:?}, explicit {is_explicit}: the call began after the removal");
        assert_eq!(cache.get(&1).await, Some(3));
    }
}

/// The old value has expired before the removal, and its load has started before it too. The removal ends the staleness
/// of the value, so the load is superseded, no matter which call or sweep finds the entry first.
#[tokio::test(start_paused = true)]
async fn remove_tag_takes_precedence_over_a_load_of_a_stale_value() {
    for (refreshes, step) in (0..10).map(|case| (case < 5, case % 5)) {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
        let cache = match refreshes {
            true => builder.stale_while_revalidate(MINUTE / 2).build(),
            false => builder.stale_if_error(MINUTE / 2).build(),
        };
        let gate = Arc::new(Semaphore::new(0));
        let old = || {
            let gate = gate.clone();
            async move || {
                gate.acquire().await.unwrap().forget();
                2
            }
        };
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        advance(MINUTE).await;
        let mut first = spawn(cache.get_or_set_with(&1, MINUTE, old()));
        match refreshes {
            true => {
                assert_ready_eq!(first.poll(), 1);
            }
            false => assert_pending!(first.poll()),
        }
        // The load is running from here on.
        sleep(Duration::from_millis(1)).await;
        cache.remove_tag("tag").await;
        match step {
            0 => {}
            1 => _ = cache.sweep().await,
            2 => assert_eq!(cache.get(&1).await, None),
            // The window ends, and the entry expires, before the removal was noticed.
            3 => advance(MINUTE / 2).await,
            _ => {
                let many = [1, 2];
                assert_eq!(cache.get_many(&many).await, [None, None]);
            }
        }
        let mut second = spawn(cache.get_or_set_with(&1, MINUTE, async || 3));
        assert_pending!(second.poll(), "it waits for the load that is running");
        gate.add_permits(1);
        sleep(Duration::from_millis(1)).await;
        if !refreshes {
            assert_ready_eq!(first.poll(), 2);
        }
        assert_ready_eq!(second.poll(), 3, "refreshes {refreshes}, step {step}");
        assert_eq!(cache.get(&1).await, Some(3), "refreshes {refreshes}, step {step}");
        let stats = cache.stats();
        assert_eq!((stats.expired, stats.removed), (1, 0), "the entry had expired");
    }
}

/// A full subscriber delays the purge, and the entry expires in the meantime: the sweep that removes it supersedes the
/// load as well.
#[tokio::test(start_paused = true)]
async fn remove_tag_takes_precedence_over_a_load_if_the_purge_is_held_back() {
    let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
    let cache = builder.refresh_ahead(1e9).publish([Cause::Removed]).build();
    let gate = Arc::new(Semaphore::new(1));
    let load = |value| {
        let gate = gate.clone();
        async move || {
            sleep(Duration::from_millis(1)).await;
            gate.acquire().await.unwrap().forget();
            value
        }
    };
    // One load first: refresh-ahead needs a duration of loads.
    cache.get_or_set_with(&0, MINUTE, load(0)).await;
    cache.remove(&0).await;
    cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
    advance(MINUTE / 2).await;
    assert_eq!(cache.get_or_set_with(&1, MINUTE, load(2)).await, 1);
    sleep(Duration::from_millis(1)).await;
    let mut events = cache.events_lossless(1);
    cache.set(3, 3).await;
    cache.remove(&3).await;
    cache.remove_tag("tag").await;
    advance(MINUTE / 2).await;
    assert!(cache.sweep().await.held_back, "the subscriber is full");
    assert_eq!(cache.len(), 0);
    gate.add_permits(1);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(cache.stats().loads, 2, "the refresh has finished");
    assert_eq!(cache.get(&1).await, None, "the loaded value is older than the removal");
    while let Some(event) = events.recv().now_or_never().flatten() {
        assert_eq!(event.cause, Cause::Removed);
    }
}

/// Checks each method that waits for a key.
#[tokio::test(start_paused = true)]
async fn remove_tag_wakes_waiters_of_the_key() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).publish([]).build();
    cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
    let mut removal = spawn(cache.expired(&1));
    assert_pending!(removal.poll());
    cache.remove_tag("tag").await;
    let mut insertion = spawn(cache.wait_for(&1));
    assert_pending!(insertion.poll());
    let event = assert_ready!(removal.poll()).unwrap();
    assert_eq!((event.value, event.cause), (1, Cause::Removed));
    cache.set_tagged(1, 2, MINUTE, ["tag"]).await;
    assert_ready_eq!(insertion.poll(), 2);
}

/// No call that would publish the event follows.
#[tokio::test(start_paused = true)]
async fn every_read_that_removes_an_entry_removed_by_tag_publishes_its_event() {
    for read in 0..5 {
        let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).publish([]).build();
        let load = || cache.get_or_set_with(&1, MINUTE, pending);
        let load_many = || cache.get_many_or_set_with([1], MINUTE, |_| pending());
        let (mut leader, mut follower) = (spawn(load()), spawn(load()));
        let mut follower_of_many = spawn(load_many());
        assert_pending!(leader.poll());
        match read {
            3 => assert_pending!(follower.poll()),
            4 => assert_pending!(follower_of_many.poll()),
            _ => {}
        }
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        let mut removal = spawn(cache.expired(&1));
        assert_pending!(removal.poll());
        cache.remove_tag("tag").await;
        match read {
            0 => assert_eq!(cache.live_len(), 0),
            1 => assert_eq!(cache.iter().count(), 0),
            2 => assert_eq!(cache.keys().next(), None),
            // The follower becomes the leader, and looks the key up before it loads.
            _ => drop(leader),
        }
        match read {
            3 => assert_pending!(follower.poll()),
            4 => assert_pending!(follower_of_many.poll()),
            _ => {}
        }
        assert!(removal.is_woken(), "read {read}");
        assert_eq!(assert_ready!(removal.poll()).unwrap().cause, Cause::Removed);
    }
}

/// An entry that had expired before the removal could be stale, but an entry removed by tag must not be.
#[tokio::test(start_paused = true)]
async fn entry_removed_by_tag_is_never_returned_stale() {
    for expires_first in [false, true] {
        let cache: Cache<u32, u32> = Cache::builder()
            .sweep(Sweep::manual())
            .stale_while_revalidate(MINUTE)
            .stale_if_error(MINUTE)
            .build();
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        if expires_first {
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

/// At the bound, entries removed by tag are removed before live ones are evicted. Without a sweep, this holds for those
/// that the policy samples.
#[tokio::test(start_paused = true)]
async fn entries_removed_by_tag_are_removed_before_evictions() {
    let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual().seed(1));
    // Fixed and well mixed: if entries of one kind were clustered in a table, a sample there would have only that kind.
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
    assert!(stats.evicted < 50, "{} live entries were evicted", stats.evicted);
    while let Some(event) = events.recv().now_or_never().flatten() {
        assert_eq!(event.cause == Cause::Removed, event.key >= 1_000_000, "{event:?}");
    }
}

/// An entry removed by tag while it was live has the cause `Removed`, no matter how late and by which operation it is
/// removed from memory.
#[tokio::test(start_paused = true)]
async fn entry_removed_by_tag_has_the_cause_removed_after_its_deadline() {
    for bounded in [false, true] {
        for operation in 0..7 {
            let builder = Cache::<u32, u32>::builder()
                .sweep(Sweep::manual())
                .publish([Cause::Expired, Cause::Removed]);
            let cache = if bounded { builder.max_entries(2).build() } else { builder.build() };
            let mut events = cache.events_lossless(100);
            cache.set(2, 2).await;
            cache.set_tagged(1, 1, Duration::from_secs(1), ["a"]).await;
            cache.remove_tag("a").await;
            advance(Duration::from_secs(2)).await;
            match operation {
                0 => cache.clear().await,
                1 if bounded => drop(cache.set(3, 3).await),
                1 | 2 => drop(cache.sweep().await),
                3 => assert_eq!(cache.get(&1).await, None),
                4 => assert_eq!(cache.set(1, 3).await, None),
                5 => assert_eq!(cache.remove_many([&1]).await, 0),
                _ => cache.shutdown().await,
            }
            let received = from_fn(|| unconstrained(events.recv()).now_or_never().flatten());
            let received: Vec<_> = received.filter(|event| event.key == 1).collect();
            assert_eq!(received.len(), 1, "{operation}");
            assert_eq!((received[0].value, received[0].cause), (1, Cause::Removed), "{operation}");
            let stats = cache.stats();
            assert_eq!(stats.expired, 0, "{operation}");
        }
    }
}

/// Without a subscriber, `clear` replaces the table as a whole.
#[tokio::test(start_paused = true)]
async fn cleared_entry_that_was_removed_by_tag_is_counted_as_removed() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).publish([]).build();
    cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
    cache.set_ex(2, 2, MINUTE).await;
    cache.set(3, 3).await;
    cache.remove_tag("tag").await;
    advance(MINUTE).await;
    cache.clear().await;
    let stats = cache.stats();
    assert_eq!((stats.removed, stats.expired), (2, 1));
}

/// The removal of the tag has ended the stale window, but the value had expired before: it departs as `Expired`, as
/// after `remove`, no matter by which operation it is removed from memory.
#[tokio::test(start_paused = true)]
async fn stale_entry_departs_as_expired_after_the_removal_of_its_tag() {
    for bounded in [false, true] {
        for operation in 0..9 {
            let builder = Cache::<u32, u32>::builder()
                .sweep(Sweep::manual())
                .stale_if_error(60 * MINUTE)
                .publish([Cause::Expired, Cause::Removed, Cause::Replaced, Cause::Evicted]);
            let cache = if bounded { builder.max_entries(2).build() } else { builder.build() };
            let mut events = cache.events_lossless(100);
            cache.set(2, 2).await;
            cache.set_tagged(1, 1, MINUTE, ["a"]).await;
            advance(2 * MINUTE).await;
            cache.remove_tag("a").await;
            match operation {
                0 => cache.clear().await,
                1 if bounded => drop(cache.set(3, 3).await),
                1 | 2 => assert_eq!(cache.sweep().await.expired, 1),
                3 => assert_eq!(cache.get_or_set_with(&1, MINUTE, async || 3).await, 3),
                4 => assert_eq!(cache.set(1, 3).await, None),
                5 => assert_eq!(cache.remove_many([&1]).await, 0),
                6 => assert_eq!(cache.remove(&1).await, None),
                7 => cache.set_many([(1, 3)], None).await,
                _ => cache.shutdown().await,
            }
            let received = from_fn(|| unconstrained(events.recv()).now_or_never().flatten());
            let received: Vec<_> =
                received.map(|event| (event.key, event.value, event.cause)).collect();
            let cleared = (operation == 0).then_some((2, 2, Cause::Removed));
            let mut expected: Vec<_> = cleared.into_iter().collect();
            expected.push((1, 1, Cause::Expired));
            expected.sort_by_key(|(key, ..)| received.iter().position(|(other, ..)| key == other));
            assert_eq!(received, expected, "{operation}");
            cache.sweep().await;
            assert_eq!(cache.stats().expired, 1, "{operation}");
        }
    }
}

/// Only the next sweep: the window would last for an hour.
#[tokio::test(start_paused = true)]
async fn sweep_removes_stale_entries_with_a_removed_tag() {
    let cache = Cache::builder().stale_while_revalidate(60 * MINUTE).shards(4).build();
    for key in 0..1_000 {
        cache.set_tagged(key, key, MINUTE, [if key % 2 == 0 { "even" } else { "odd" }]).await;
    }
    advance(2 * MINUTE).await;
    for key in 0..100 {
        cache.set_tagged(key, key, MINUTE, ["even"]).await;
    }
    cache.remove_tag("even").await;
    sleep(Duration::from_secs(1)).await;
    let stats = cache.stats();
    // The 100 written values have replaced expired ones.
    assert_eq!((cache.len(), stats.removed, stats.expired), (450, 100, 100 + 450));
    cache.remove_tag("odd").await;
    sleep(Duration::from_secs(1)).await;
    assert!(cache.is_empty());
}

/// The load has begun after the removal of the tag, so it replaces the value in any case.
#[tokio::test(start_paused = true)]
async fn sweep_of_a_stale_entry_with_a_removed_tag_does_not_end_its_load() {
    for max_entries in [1, 1_000] {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual());
        let builder = builder.stale_while_revalidate(60 * MINUTE).max_entries(max_entries);
        let cache = builder.build();
        cache.set_tagged(1, 1, MINUTE, ["tag"]).await;
        advance(2 * MINUTE).await;
        cache.remove_tag("tag").await;
        let loaded = Semaphore::new(0);
        let mut load = spawn(cache.get_or_set(&1, MINUTE, async {
            loaded.acquire().await.unwrap().forget();
            2
        }));
        assert_pending!(load.poll());
        cache.sweep().await;
        assert!(cache.is_empty());
        loaded.add_permits(1);
        assert_ready_eq!(load.poll(), 2);
        assert_eq!(cache.get(&1).await, Some(2));
    }
}
