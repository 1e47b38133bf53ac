//! Freshness of values: stale windows, background refreshes, `time_to_idle` and jitter.

use std::{
    fmt::Debug,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::{Builder, Cache, Cause, Freshness, Sweep, Ttl, When};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, advance, sleep};
use tracing::Level;

use crate::log::Log;

const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn builder() -> Builder<u32, u32> {
    Cache::builder().sweep(Sweep::manual())
}

type LoadResult = Result<(u32, Freshness), Arc<&'static str>>;

/// Requests key 1 with a loader that returns `value` immediately.
async fn load(cache: &Cache<u32, u32>, ttl: u32, value: Result<u32, &'static str>) -> LoadResult {
    cache.get_or_try_set_with_freshness(&1, ttl * SECOND, async move || value).await
}

/// Lets background refreshes run.
async fn run_background_tasks() {
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

#[tokio::test(start_paused = true)]
async fn write_or_removal_ends_the_stale_window() {
    for write in 0..5 {
        let cache = builder().stale_while_revalidate(10 * SECOND).build();
        cache.set_tagged(1, 1, SECOND, ["tag"]).await;
        advance(SECOND).await;
        match write {
            0 => assert_eq!(cache.set_ex(1, 9, Duration::ZERO).await, None),
            1 => assert_eq!(cache.remove(&1).await, None),
            2 => cache.clear().await,
            3 => cache.remove_tag("tag").await,
            _ => assert!(cache.set_nx(1, 9, Some(Duration::ZERO)).await),
        }
        let (value, freshness) = load(&cache, 1, Ok(2)).await.unwrap();
        match write {
            // The written value has itself expired, and is stale.
            0 | 4 => assert_eq!((value, freshness), (9, Freshness::Stale), "{write}"),
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

/// Result of a loader method at any time, compared with a model of a few lines.
#[tokio::test(start_paused = true)]
async fn freshness_agrees_with_a_naive_model() {
    let mut random = SmallRng::seed_from_u64(0x5eed_0150);
    for round in 0..200 {
        let [revalidate, if_error] = [0, 0].map(|_: u32| random.random_range(0..4_u32) * 2);
        let negative = random.random_range(0..3_u32);
        let builder =
            builder().stale_while_revalidate(revalidate * SECOND).stale_if_error(if_error * SECOND);
        let cache = match negative {
            0 => builder.build(),
            seconds => builder.negative_ttl(seconds * SECOND).build(),
        };
        // Value and its deadline; end of the kept error; end of the refresh backoff, and number of failures in a row.
        let (mut value, mut error) = (None::<(u32, Duration)>, Duration::ZERO);
        let (mut pause, mut fails, mut forgotten) = (Duration::ZERO, 0_u32, Duration::ZERO);
        let (start, mut next) = (Instant::now(), 0);
        for step in 0..60 {
            let now = start.elapsed();
            next += 1;
            let source = if random.random_bool(0.5) { Ok(next) } else { Err("down") };
            let ttl = random.random_range(0..3_u32);
            let got = load(&cache, ttl, source).await;
            run_background_tasks().await;
            let is_within =
                |window: u32| value.filter(|(_, expired_at)| now < *expired_at + window * SECOND);
            let may_retry = now >= pause || now >= forgotten;
            let mut fail = |error_until: &mut Duration| {
                if negative > 0 || revalidate > 0 {
                    let row = if now < forgotten { fails } else { 0 };
                    let wait = SECOND * 2_u32.pow(row).min(60);
                    *error_until = now + negative * SECOND;
                    (pause, fails) = (now + wait, row + 1);
                    forgotten = now + (2 * wait).max(negative * SECOND);
                }
            };
            let expected = if let Some((value, _)) = is_within(0) {
                Ok((value, Freshness::Fresh))
            } else if let Some((stale, _)) = is_within(revalidate) {
                if may_retry {
                    match source {
                        Ok(new) => {
                            value = Some((new, now + ttl * SECOND));
                            (error, pause, fails, forgotten) = Default::default();
                        }
                        Err(_) => fail(&mut error),
                    }
                }
                Ok((stale, Freshness::Stale))
            } else {
                let failed = is_within(if_error).map(|(stale, _)| (stale, Freshness::Stale));
                match source {
                    _ if now < error => failed.ok_or(()),
                    Ok(new) => {
                        value = Some((new, now + ttl * SECOND));
                        (error, pause, fails, forgotten) = Default::default();
                        Ok((new, Freshness::Loaded))
                    }
                    Err(_) => {
                        fail(&mut error);
                        failed.ok_or(())
                    }
                }
            };
            assert_eq!(got.map_err(|_| ()), expected, "round {round}, step {step}");
            if random.random_bool(0.05) {
                cache.remove(&1).await;
                value = None;
                (error, pause, fails, forgotten) = Default::default();
            }
            if random.random_bool(0.3) {
                cache.sweep().await;
            }
            advance(SECOND * random.random_range(0..3)).await;
        }
    }
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

#[tokio::test(start_paused = true)]
async fn time_to_idle_expires_unread_entries() {
    for bounded in [false, true] {
        let builder = builder().time_to_idle(10 * SECOND);
        let cache = if bounded { builder.max_entries(100).build() } else { builder.build() };
        cache.set(1, 1).await;
        cache.set_ex(2, 2, 25 * SECOND).await;
        cache.set_ex(3, 3, 5 * SECOND).await;
        assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND));
        assert_eq!(cache.ttl(&2).await, Ttl::Remaining(10 * SECOND));
        assert_eq!(cache.ttl(&3).await, Ttl::Remaining(5 * SECOND));
        advance(9 * SECOND).await;
        assert_eq!(cache.get_many([&1, &2, &3]).await, [Some(1), Some(2), None]);
        advance(9 * SECOND).await;
        // Neither of these calls is a hit.
        assert!(cache.contains_key(&1).await && cache.iter().count() == 2);
        assert_eq!(cache.get_or_set_with(&2, SECOND, async || unreachable!()).await, 2);
        assert_eq!(cache.ttl(&2).await, Ttl::Remaining(7 * SECOND), "the earlier deadline applies");
        advance(SECOND).await;
        assert_eq!(cache.get(&1).await, None);
        advance(6 * SECOND).await;
        assert_eq!(cache.get(&2).await, None);
    }
}

/// Methods on TTLs read and change the hard deadline.
#[tokio::test(start_paused = true)]
async fn time_to_idle_keeps_the_hard_deadline() {
    let cache = builder().time_to_idle(10 * SECOND).build();
    cache.set_ex(1, 1, 100 * SECOND).await;
    advance(5 * SECOND).await;
    cache.update(&1, |value| *value += 1).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(5 * SECOND), "the entry was not read");
    assert!(cache.persist(&1).await);
    assert!(!cache.persist(&1).await);
    for _ in 0..30 {
        advance(9 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(2));
    }
    assert!(cache.expire(&1, 12 * SECOND).await);
    assert!(cache.extend(&1, SECOND).await);
    advance(9 * SECOND).await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
    cache.set_keep_ttl(1, 3).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
    advance(4 * SECOND).await;
    assert_eq!(cache.get(&1).await, None);
}

/// Setting a deadline restarts the idle time, even if it is the deadline that the entry already has.
#[tokio::test(start_paused = true)]
async fn setting_a_deadline_restarts_time_to_idle() {
    let cache = builder().time_to_idle(10 * SECOND).build();
    let end = Instant::now() + 1_000 * SECOND;
    for given in [end, end + SECOND] {
        for method in 0..3 {
            cache.set_ex(1, 1, end - Instant::now()).await;
            advance(6 * SECOND).await;
            let remaining = given - Instant::now();
            assert!(match method {
                0 => cache.expire_at(&1, given).await,
                1 => cache.expire(&1, remaining).await,
                _ => cache.get_ex(&1, remaining).await.is_some(),
            });
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND), "{method}");
            // This call sets no deadline.
            advance(SECOND).await;
            assert!(!cache.expire_if(&1, SECOND, When::NoTtl).await);
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(9 * SECOND));
        }
    }
}

/// Entries move to larger and smaller tables, and each keeps its hard deadline and tags.
#[tokio::test(start_paused = true)]
async fn hard_deadlines_and_tags_survive_a_rehash() {
    for bounded in [false, true] {
        let builder = builder().time_to_idle(100 * SECOND);
        let cache = if bounded { builder.max_entries(100_000).build() } else { builder.build() };
        for key in 0..50_000 {
            let tag = format!("tag {}", key % 10);
            if key % 3 == 0 {
                cache
                    .set_tagged(key, key, Duration::from_secs(150 + u64::from(key) % 7), [tag])
                    .await;
            } else {
                cache.set_ex(key, key, Duration::from_secs(150 + u64::from(key) % 7)).await;
            }
        }
        for key in 0..50_000 {
            if key % 16 != 0 {
                cache.remove(&key).await;
            }
        }
        // Each sweep moves a part of the entries to smaller tables, with reads in between.
        let mut sweeps = 0;
        advance(90 * SECOND).await;
        while sweeps < 40 {
            cache.sweep().await;
            sweeps += 1;
            for key in (0..50_000).step_by(16).skip(sweeps).step_by(40) {
                assert_eq!(cache.get(&key).await, Some(key));
            }
        }
        cache.get_many((0..50_000).collect::<Vec<_>>().iter()).await;
        for key in (0..50_000).step_by(16) {
            let remaining = Duration::from_secs(60 + u64::from(key) % 7);
            assert_eq!(cache.ttl(&key).await, Ttl::Remaining(remaining), "{key}");
        }
        cache.remove_tag("tag 2").await;
        cache.remove_tag("no such tag").await;
        for key in (0..50_000).step_by(16) {
            let is_tagged = key % 3 == 0 && key % 10 == 2;
            assert_eq!(cache.get(&key).await.is_none(), is_tagged, "{key}");
        }
    }
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

/// Failures that `on_refresh_error` has reported, as text.
type Reported = Arc<Mutex<Vec<(u32, String)>>>;

/// Hook that records its calls.
fn record_in(reported: &Reported) -> impl Fn(&u32, &dyn Debug) + Send + Sync + use<> {
    let reported = reported.clone();
    move |key, error| reported.lock().unwrap().push((*key, format!("{error:?}")))
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_gets_the_key_and_the_error() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let reported = Reported::default();
    let builder = builder().name("rates").stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    assert_eq!(load(&cache, 1, Err("the source is down")).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    let errors = [(1, r#""the source is down""#.to_owned())];
    assert_eq!(*reported.lock().unwrap(), errors);
    let lines = log.lines("background refresh failed");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN", "cache=\"rates\"", "error=", "the source is down"] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    // No refresh is started during the backoff, and a refresh that succeeds is not reported.
    assert_eq!(load(&cache, 1, Err("still down")).await, Ok((1, Freshness::Stale)));
    advance(SECOND).await;
    assert_eq!(load(&cache, 1, Ok(2)).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(*reported.lock().unwrap(), errors);
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_names_a_panic_and_a_timeout() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let reported = Reported::default();
    let builder = builder().stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    cache.set_many([(1, 1), (2, 2), (3, 3)], Some(SECOND)).await;
    advance(SECOND).await;
    cache.get_or_set_with(&1, SECOND, async || panic!("the panic of this test")).await;
    cache.get_or_set_with(&2, SECOND, async || panic!("panic {}", 2)).await;
    cache.get_or_set_with(&3, SECOND, std::future::pending::<u32>).await;
    sleep(61 * SECOND).await;
    let texts = [
        (1, "panicked: the panic of this test".to_owned()),
        (2, "panicked: panic 2".to_owned()),
        (3, "timed out after 60s, the timeout of background refreshes".to_owned()),
    ];
    assert_eq!(*reported.lock().unwrap(), texts);
    assert_eq!(log.lines("background refresh failed").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_is_not_called_for_loads_that_callers_wait_for() {
    let reported = Reported::default();
    let builder = builder().stale_if_error(1_000 * SECOND).stale_while_revalidate(SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    assert!(load(&cache, 1, Err("down")).await.is_err());
    cache.set_ex(1, 1, SECOND).await;
    advance(3 * SECOND).await;
    assert_eq!(load(&cache, 1, Err("down")).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    assert!(reported.lock().unwrap().is_empty());
}

/// The hook runs under no lock: it may call the cache, and waiters do not wait for it.
#[tokio::test(start_paused = true)]
async fn on_refresh_error_may_call_the_cache() {
    let own: Arc<Mutex<Option<fleeting::WeakCache<u32, u32>>>> = Arc::default();
    let in_hook = own.clone();
    let hook = move |key: &u32, _: &dyn Debug| {
        let cache = in_hook.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
        cache.set_ex(*key, 9, SECOND).now_or_never().unwrap();
    };
    let builder = builder().stale_while_revalidate(1_000 * SECOND).on_refresh_error(hook);
    let cache = builder.build();
    *own.lock().unwrap() = Some(cache.downgrade());
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    load(&cache, 1, Err("down")).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(9));
}

#[tokio::test(start_paused = true)]
async fn panic_of_on_refresh_error_is_logged() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let builder = builder().name("hot").stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(|_, _| panic!("the panic of this test")).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    load(&cache, 1, Err("down")).await.unwrap();
    run_background_tasks().await;
    let errors = log.lines("on_refresh_error hook panicked");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("ERROR") && errors[0].contains("cache=\"hot\""), "{}", errors[0]);
    // The refresh is retried as after any failure.
    advance(SECOND).await;
    load(&cache, 1, Ok(2)).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
}

/// Error whose `Debug` panics.
struct DebugPanics;

impl Debug for DebugPanics {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the panic of this test")
    }
}

#[tokio::test(start_paused = true)]
async fn error_whose_debug_panics_is_reported() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let builder = builder().stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(move |_, _| _ = counter.fetch_add(1, SeqCst)).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let fails = async || Err::<u32, _>(DebugPanics);
    assert!(matches!(cache.get_or_try_set_with(&1, SECOND, fails).await, Ok(1)));
    run_background_tasks().await;
    assert_eq!(calls.load(SeqCst), 1);
    assert_eq!(log.lines("the Debug of the error panicked").len(), 1);
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
