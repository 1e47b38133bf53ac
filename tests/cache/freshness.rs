//! Freshness of values: stale windows, background refreshes and jitter.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::{Builder, Cache, Cause, Freshness, Sweep, Ttl};
use futures::FutureExt;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_eq, task};

const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

pub(crate) fn builder() -> Builder<u32, u32> {
    Cache::builder().sweep(Sweep::manual())
}

pub(crate) type LoadResult = Result<(u32, Freshness), Arc<&'static str>>;

/// Requests key 1 with a loader that returns `value` immediately.
pub(crate) async fn load(
    cache: &Cache<u32, u32>,
    ttl: u32,
    value: Result<u32, &'static str>,
) -> LoadResult {
    cache.get_or_try_set_with_freshness(&1, ttl * SECOND, async move || value).await
}

/// Lets background refreshes run.
pub(crate) async fn run_background_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stale_while_revalidate_returns_the_old_value_and_reloads_it() {
    let cache = builder().stale_while_revalidate(10 * SECOND).build();
    let mut events = cache.events();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    assert_eq!((cache.get(&1).await, cache.contains_key(&1).await), (None, false));
    assert_eq!((cache.ttl(&1).await, cache.iter().count()), (Ttl::Missing, 0));
    assert!(!cache.expire(&1, SECOND).await, "an expired value is not revived");
    assert_eq!(load(&cache, 1, Ok(2)).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
    let event = events.recv().await.unwrap().unwrap();
    assert_eq!((event.value, event.cause), (1, Cause::Expired));
    assert_eq!(cache.stats().loads, 1);
}

#[tokio::test(start_paused = true)]
async fn entry_expires_after_its_stale_if_error_window_with_its_original_deadline() {
    for bounded in [false, true] {
        let builder = Cache::<u32, u32>::builder().stale_if_error(10 * SECOND);
        let cache = if bounded { builder.max_entries(10).build() } else { builder.build() };
        let start = Instant::now();
        let mut events = cache.events();
        cache.set_ex(1, 1, SECOND).await;
        advance(11 * SECOND - NANOSECOND).await;
        cache.sweep().await;
        assert_eq!((cache.len(), cache.live_len()), (1, 0));
        assert_eq!(load(&cache, 1, Err("down")).await, Ok((1, Freshness::Stale)));
        advance(NANOSECOND).await;
        assert_eq!(*load(&cache, 1, Err("down")).await.unwrap_err(), "down");
        cache.sweep().await;
        assert_eq!(cache.len(), 0);
        let event = events.recv().await.unwrap().unwrap();
        assert_eq!((event.value, event.cause), (1, Cause::Expired));
        assert_eq!(event.deadline, Some(start + SECOND));
        assert!(event.at >= start + 11 * SECOND, "{:?}", event.at - start);
    }
}

/// The sweeper removes the entry without a call, within the bound on staleness after the window.
/// As on Redis. A token that must not be used again, for example, has no time left.
#[tokio::test(start_paused = true)]
async fn value_with_a_ttl_of_zero_is_never_stale() {
    type Build = fn(Builder<u32, u32>) -> Builder<u32, u32>;
    let windows: [Build; 2] =
        [|b| b.stale_while_revalidate(10 * SECOND), |b| b.stale_if_error(10 * SECOND)];
    let bounds: [Build; 3] = [|b| b, |b| b.max_entries(10), |b| b.max_weight(10, |_, _| 1)];
    for (window, bound) in windows.into_iter().flat_map(|w| bounds.map(|b| (w, b))) {
        for before in [None, Some(SECOND), Some(Duration::from_secs(9))] {
            let cache = bound(window(builder())).build();
            let mut events = cache.events();
            if let Some(ttl) = before {
                // Stale by now, or live.
                cache.set_ex(1, 0, ttl).await;
                advance(SECOND).await;
            }
            assert_eq!(cache.refresh_with(&1, Duration::ZERO, || async { 1 }).await, 1);
            assert_eq!(cache.len(), 0);
            let is_error = load(&cache, 1, Err("the source is down")).await.is_err();
            assert!(is_error, "a value that was not to be cached is returned: {before:?}");
            cache.set_ex(1, 2, Duration::ZERO).await;
            assert_eq!(load(&cache, 0, Ok(3)).await, Ok((3, Freshness::Loaded)));
            assert_eq!(cache.len(), 0);
            // The replacement of a live value is not published.
            let old = before.filter(|ttl| *ttl == SECOND).map(|_| (0, Cause::Expired));
            let new = [1, 2, 3].map(|value| (value, Cause::Expired));
            for expected in old.into_iter().chain(new) {
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!((event.value, event.cause), expected, "{before:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sweeper_removes_stale_entries_after_their_window() {
    let cache = Cache::<u32, u32>::builder().stale_while_revalidate(3_600 * SECOND).build();
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(3_600 * SECOND).await;
    assert_eq!(cache.len(), 1_000);
    sleep(SECOND + Duration::from_millis(150)).await;
    assert_eq!(cache.len(), 0);
}

/// The sweeper's index counts from the time at which the cache was built.
#[tokio::test(start_paused = true)]
async fn stale_window_that_ended_before_the_cache_was_built_is_swept() {
    let sweep = Sweep::manual().sample(1.0);
    let cache = Cache::<u32, u32>::builder().sweep(sweep).stale_if_error(10 * SECOND).build();
    cache.set(1, 1).await;
    cache.set(2, 2).await;
    assert!(cache.expire_at(&1, Instant::now() - 10 * SECOND).await);
    assert!(cache.expire_at(&2, Instant::now() - 9 * SECOND).await);
    assert_eq!(cache.sweep().await.expired, 1);
    assert_eq!(cache.sweep().await.expired, 0, "the other is within its window");
    advance(SECOND).await;
    assert_eq!(cache.sweep().await.expired, 1);
    assert!(cache.is_empty());
}

#[tokio::test(start_paused = true)]
async fn write_or_removal_ends_the_stale_window() {
    for write in 0..5 {
        let cache = builder().stale_while_revalidate(10 * SECOND).build();
        cache.set_tagged(1, 1, SECOND, ["tag"]).await;
        advance(SECOND).await;
        match write {
            0 => assert_eq!(cache.set_ex(1, 9, SECOND).await, None),
            1 => assert_eq!(cache.remove(&1).await, None),
            2 => cache.clear().await,
            3 => cache.remove_tag("tag").await,
            _ => assert!(cache.set_nx(1, 9, Some(SECOND)).await),
        }
        let (value, freshness) = load(&cache, 1, Ok(2)).await.unwrap();
        match write {
            0 | 4 => assert_eq!((value, freshness), (9, Freshness::Fresh), "{write}"),
            _ => assert_eq!((value, freshness), (2, Freshness::Loaded), "{write}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_refresh_is_retried_with_exponential_backoff() {
    let cache = builder().stale_while_revalidate(1_000 * SECOND).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let tries = Arc::new(AtomicU32::new(0));
    let start = Instant::now();
    let mut at = Vec::new();
    while start.elapsed() < 200 * SECOND {
        let (before, counter) = (tries.load(SeqCst), tries.clone());
        let fails = async move || {
            counter.fetch_add(1, SeqCst);
            Err::<u32, _>("down")
        };
        let stale = cache.get_or_try_set_with_freshness(&1, SECOND, fails).await;
        assert_eq!(stale.unwrap(), (1, Freshness::Stale));
        run_background_tasks().await;
        if tries.load(SeqCst) > before {
            at.push(start.elapsed().as_secs());
        }
        advance(SECOND / 2).await;
    }
    assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    assert_eq!(cache.stats().failed_loads, 9);
    // A refresh that succeeds ends the backoff.
    advance(60 * SECOND).await;
    load(&cache, 1, Ok(2)).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn refresh_that_panics_is_retried() {
    let cache = builder().stale_while_revalidate(1_000 * SECOND).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let panics = async || -> Result<u32, &str> { panic!("panic of the loader") };
    let stale = cache.get_or_try_set_with_freshness(&1, SECOND, panics).await;
    assert_eq!(stale.unwrap(), (1, Freshness::Stale));
    run_background_tasks().await;
    advance(SECOND).await;
    load(&cache, 1, Ok(2)).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
}

/// One refresh runs at a time, a concurrent write takes precedence over it, and it does not keep the cache alive.
#[tokio::test(start_paused = true)]
async fn one_refresh_runs_per_key_and_a_write_takes_precedence() {
    let cache = builder().stale_while_revalidate(1_000 * SECOND).build();
    let loads = Arc::new(AtomicU32::new(0));
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let slow = || {
        let loads = loads.clone();
        async move || {
            loads.fetch_add(1, SeqCst);
            sleep(5 * SECOND).await;
            Ok::<_, &str>(2)
        }
    };
    for _ in 0..10 {
        let stale = cache.get_or_try_set_with_freshness(&1, SECOND, slow()).await;
        assert_eq!(stale.unwrap(), (1, Freshness::Stale));
        sleep(SECOND / 10).await;
    }
    assert_eq!(loads.load(SeqCst), 1);
    cache.set(1, 7).await;
    sleep(10 * SECOND).await;
    assert_eq!(cache.get(&1).await, Some(7));

    cache.set_ex(1, 1, Duration::ZERO).await;
    cache.get_or_try_set_with_freshness(&1, SECOND, slow()).await.unwrap();
    run_background_tasks().await;
    assert_eq!(loads.load(SeqCst), 2);
    let weak = cache.downgrade();
    drop(cache);
    assert!(weak.upgrade().is_none());
    sleep(10 * SECOND).await;
}

/// Key that calls a closure when it is hashed for the n-th time.
#[derive(Clone)]
struct HookedKey(Arc<AtomicU32>, Arc<dyn Fn() + Send + Sync>);

impl Hash for HookedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.0.fetch_sub(1, SeqCst) == 1 {
            (self.1)();
        }
        1_u32.hash(state);
    }
}

impl PartialEq for HookedKey {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HookedKey {}

/// A value renewed at any point during the call is not loaded again.
#[tokio::test(start_paused = true)]
async fn refresh_is_skipped_if_the_value_was_renewed_since_the_lookup() {
    let mut renewed = 0;
    for hash_call in 1..10 {
        let builder = Cache::<HookedKey, u32>::builder().sweep(Sweep::manual());
        let cache = builder.stale_while_revalidate(10 * SECOND).build();
        let plain_key = HookedKey(Arc::default(), Arc::new(|| ()));
        cache.set_ex(plain_key.clone(), 1, SECOND).await;
        advance(SECOND).await;
        let renewal = Arc::new(AtomicU32::new(0));
        let (renews, is_renewed, key) = (cache.downgrade(), renewal.clone(), plain_key.clone());
        let renew = move || {
            let cache = renews.upgrade().unwrap();
            let set = tokio::task::unconstrained(cache.set_ex(key.clone(), 7, 60 * SECOND));
            is_renewed.store(set.now_or_never().is_some().into(), SeqCst);
        };
        let key = HookedKey(Arc::new(AtomicU32::new(hash_call)), Arc::new(renew));
        let got = cache.get_or_set_with(&key, SECOND, async || 2).await;
        let was_renewed = renewal.load(SeqCst);
        renewed += was_renewed;
        run_background_tasks().await;
        if was_renewed == 1 {
            assert_eq!(cache.stats().loads, 0, "hash_call {hash_call}, got {got}");
            assert_eq!(cache.get(&plain_key).await, Some(7));
        }
    }
    assert!(renewed >= 3, "{renewed}");
}

#[tokio::test(start_paused = true)]
async fn refresh_ahead_reloads_before_the_deadline_and_returns_immediately() {
    let cache = builder().refresh_ahead(10.0).sweep(Sweep::manual().seed(1)).build();
    let slow = |value| {
        async move || {
            sleep(SECOND).await;
            Ok::<_, &str>(value)
        }
    };
    let ttl = 100 * SECOND;
    cache.get_or_try_set_with_freshness(&1, ttl, slow(1)).await.unwrap();
    let mut refreshed = None;
    for second in 0..100 {
        let got = cache.get_or_try_set_with_freshness(&1, ttl, slow(2)).await.unwrap();
        assert_eq!(got.1, Freshness::Fresh);
        if got.0 == 2 && refreshed.is_none() {
            refreshed = Some(second);
        }
        sleep(SECOND).await;
    }
    // A load takes a second, so the refresh starts within about ten seconds before the deadline.
    let refreshed = refreshed.expect("the value was reloaded before its deadline");
    assert!((30..99).contains(&refreshed), "{refreshed}");
}

/// After loads that took no time, a value is refreshed in the last seconds at the earliest; after a slow one, long
/// before.
#[tokio::test(start_paused = true)]
async fn refresh_ahead_starts_earlier_after_a_slow_load() {
    let cache = builder().refresh_ahead(1e9).sweep(Sweep::manual().seed(1)).build();
    let ttl = 100 * SECOND;
    assert_eq!(cache.get_or_set_with(&1, ttl, async || 1).await, 1);
    assert_eq!(cache.get_or_set_with(&1, ttl, async || 2).await, 1);
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(1));
    let slow = async || {
        sleep(SECOND).await;
        1
    };
    assert_eq!(cache.get_or_set_with(&2, ttl, slow).await, 1);
    assert_eq!(cache.get_or_set_with(&1, ttl, async || 3).await, 1);
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(3));
}

/// An update in place takes precedence over a running load, as other writes do.
#[tokio::test(start_paused = true)]
async fn update_takes_precedence_over_a_refresh_ahead() {
    for bounded in [false, true] {
        let builder = builder().refresh_ahead(1e9).sweep(Sweep::manual().seed(1));
        let cache = if bounded { builder.max_entries(10).build() } else { builder.build() };
        let slow = |value| {
            async move || {
                sleep(SECOND).await;
                value
            }
        };
        cache.get_or_set_with(&1, 100 * SECOND, slow(1)).await;
        assert_eq!(cache.get_or_set_with(&1, 100 * SECOND, slow(2)).await, 1);
        run_background_tasks().await;
        assert_eq!(cache.update(&1, |value| *value = 10).await, Some(()));
        sleep(2 * SECOND).await;
        assert_eq!(cache.stats().loads, 2);
        assert_eq!(cache.get(&1).await, Some(10), "bounded {bounded}: the update is lost");
        // Reads and changes of the deadline do not.
        assert_eq!(cache.get_or_set_with(&1, 100 * SECOND, slow(3)).await, 10);
        run_background_tasks().await;
        assert_eq!(cache.get_ex(&1, 50 * SECOND).await, Some(10));
        assert_eq!(cache.update(&2, |value| *value = 10).await, None);
        sleep(2 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(3));
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_shortens_the_ttl_by_a_random_share() {
    let cache: Cache<u32, u32> = Cache::builder()
        .jitter(0.5)
        .time_to_live(100 * SECOND)
        .sweep(Sweep::manual().seed(7))
        .build();
    for key in 0..1_000 {
        match key % 4 {
            0 => _ = cache.set(key, 0).await,
            1 => _ = cache.set_ex(key, 0, 100 * SECOND).await,
            2 => _ = cache.get_or_set_with(&key, 100 * SECOND, async || 0).await,
            _ => cache.set_many([(key, 0)], None).await,
        }
    }
    let mut ttls = Vec::new();
    for key in 0..1_000 {
        let Ttl::Remaining(ttl) = cache.ttl(&key).await else { panic!("{key}") };
        assert!(ttl > 50 * SECOND && ttl <= 100 * SECOND, "{ttl:?}");
        ttls.push(ttl);
    }
    let mean = ttls.iter().sum::<Duration>() / 1_000;
    assert!(mean > 73 * SECOND && mean < 77 * SECOND, "{mean:?}");
    cache.expire(&1, 100 * SECOND).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(100 * SECOND));
    cache.set_ex(1, 1, Duration::MAX).await;
}

#[tokio::test]
async fn invalid_freshness_settings_panic_with_their_name() {
    let panics = |build: fn(Builder<u32, u32>) -> Builder<u32, u32>| {
        let panic = std::panic::catch_unwind(|| drop(build(builder()))).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    assert!(panics(|b| b.jitter(1.0)).contains("jitter must be at least 0 and below 1, got 1"));
    assert!(panics(|b| b.jitter(f64::NAN)).contains("got NaN"));
    assert!(panics(|b| b.refresh_ahead(-1.0)).contains("refresh_ahead"));
    assert!(panics(|b| b.time_to_idle(Duration::ZERO)).contains("time_to_idle"));
    assert!(panics(|b| b.negative_ttl(Duration::ZERO)).contains("negative_ttl"));
}

#[tokio::test(start_paused = true)]
async fn refresh_does_not_wait_for_waiters_of_a_cancelled_load() {
    let cache = builder().stale_while_revalidate(1_000 * SECOND).build();
    let mut leader = task::spawn(cache.get_or_set_with(&1, SECOND, std::future::pending::<u32>));
    assert_pending!(leader.poll());
    let mut kept = task::spawn(cache.get_or_set_with(&1, SECOND, async || 7));
    assert_pending!(kept.poll());
    drop(leader);
    // Woken, but not polled.
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    assert_eq!(cache.get_or_set_with(&1, 1_000 * SECOND, async || 2).await, 1);
    sleep(SECOND).await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_ready_eq!(kept.poll(), 2, "it looks the key up again");
}

/// A refresh has no caller who could cancel it, so it needs a timeout.
#[tokio::test(start_paused = true)]
async fn hanging_refresh_times_out_after_a_minute() {
    let cache = builder().stale_while_revalidate(30 * SECOND).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let hangs = async || std::future::pending::<Result<u32, &str>>().await;
    let stale = cache.get_or_try_set_with_freshness(&1, SECOND, hangs).await;
    assert_eq!(stale.unwrap(), (1, Freshness::Stale));
    sleep(31 * SECOND).await;
    // This call waits for the refresh to time out, and then runs its own loader.
    let start = Instant::now();
    assert_eq!(load(&cache, 1, Ok(2)).await, Ok((2, Freshness::Loaded)));
    assert_eq!((start.elapsed().as_secs(), cache.stats().failed_loads), (29, 1));
}

/// A caller whose value expired during its refresh waits for the refresh. If that fails, it loads.
#[tokio::test(start_paused = true)]
async fn caller_that_waits_for_a_failing_refresh_loads() {
    let cache = builder().stale_while_revalidate(10 * SECOND).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let fails = async || {
        sleep(30 * SECOND).await;
        Err::<u32, _>("down")
    };
    let stale = cache.get_or_try_set_with_freshness(&1, SECOND, fails).await;
    assert_eq!(stale, Ok((1, Freshness::Stale)));
    sleep(20 * SECOND).await;
    assert_eq!(load(&cache, 1, Ok(2)).await, Ok((2, Freshness::Loaded)));
}
