//! The sweeper: bound on staleness, settings, reports, and correct reads at all times.

use std::{
    collections::HashMap,
    hash::RandomState,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Sweep, SweepReport, When};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Lets the sweeper run for `time`, tick by tick.
async fn run_sweeper(time: Duration) {
    sleep(time).await;
}

/// Returns a filled cache after one sweep: after a table has grown, a pass starts again and takes no sample, which
/// would disturb tests of samples.
///
/// Not with the default hasher: with one seed in about a hundred, it puts most of these keys into a part of the
/// buckets.
async fn filled_and_swept(sweep: Sweep, population: u64) -> Cache<u64, u64, RandomState> {
    let cache = Cache::builder().sweep(sweep).hasher(RandomState::new()).build();
    for key in 0..population {
        cache.set(key, key).await;
    }
    for key in population..population + 2_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    assert_eq!(cache.sweep().await.expired, 2_000, "each shard has expired entries");
    cache
}

/// `passes` manual sweeps examine all expired entries, while live entries are inserted and removed so that tables grow,
/// shrink and are rehashed in place.
async fn check_bound(population: u64, sample: f64, churn: u64) {
    // With a ratio that is never reached, each sweep is exactly one pass.
    let sweep = Sweep::manual().sample(sample).repeat_at(1.0).seed(7);
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).shards(8).build();
    for live in 0..population {
        cache.set(live, live).await;
    }
    // Few entries are expired, so that no pass finds only expired ones and repeats.
    let expired_count = (population / 10).max(u64::from(population > 0));
    for key in 0..expired_count {
        cache.set_ex(1_000_000_000 + key, key, Duration::ZERO).await;
    }
    let passes = (1.0 / sample).ceil() as u64;
    let mut expired = 0;
    let mut next = population;
    for pass in 0..passes {
        let report = cache.sweep().await;
        expired += report.expired;
        for _ in 0..churn {
            match pass % 2 {
                0 => cache.set(next, next).await,
                _ => cache.remove(&(next - population)).await,
            };
            next += 1;
        }
    }
    assert_eq!(expired, expired_count, "population {population}, sample {sample}, churn {churn}");
}

#[tokio::test(start_paused = true)]
async fn every_entry_is_examined_within_one_rotation_of_passes() {
    for population in [0, 1, 1_000, 100_000] {
        for sample in [1.0, 0.5, 0.3, 0.1, 0.03] {
            check_bound(population, sample, 0).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_entry_is_examined_while_tables_grow_and_shrink() {
    for (population, churn) in [(1, 1_000), (1_000, 5), (1_000, 1_000), (100_000, 50_000)] {
        for sample in [0.3, 0.1] {
            check_bound(population, sample, churn).await;
        }
    }
}

/// No expired entry is resident later than `every * ceil(1/sample)` after its deadline, even if the population grows
/// and shrinks by a factor of a hundred.
#[tokio::test(start_paused = true)]
async fn staleness_is_bounded_in_time() {
    let (every, sample) = (100 * MS, 0.1);
    let bound = every * 10;
    for population in [0, 1, 1_000, 100_000] {
        let sweep = Sweep::default().every(every).sample(sample).repeat_at(1.0).seed(3);
        let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
        let lags = Arc::new(Mutex::new(Vec::new()));
        let recorded = lags.clone();
        let task = cache.on_expired(async move |event| {
            recorded.lock().unwrap().push(event.lag().unwrap());
        });
        let mut due = 0;
        for key in 0..population {
            // Deadlines are spread over 3 s; a third of the entries is persistent.
            match key % 3 {
                0 => cache.set(key, key).await,
                _ => cache.set_ex(key, key, MS * (key % 3_000) as u32).await,
            };
            due += usize::from(key % 3 != 0);
        }
        for round in 0..50 {
            sleep(every).await;
            // The population grows and then shrinks.
            for key in 0..population / 50 {
                let key = 1_000_000 + key + round * population;
                match round < 25 {
                    true => cache.set(key, key).await,
                    false => cache.remove(&(key - 25 * population)).await,
                };
            }
        }
        cache.shutdown().await;
        task.await.unwrap();
        let lags = lags.lock().unwrap();
        assert_eq!(lags.len(), due);
        let worst = lags.iter().max().copied().unwrap_or_default();
        assert!(worst <= bound, "{population} entries: {worst:?} is later than {bound:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn default_sweep_removes_expired_entries_within_a_second() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..10_000 {
        cache.set(key, key).await;
        cache.set_ex(20_000 + key, key, SECOND).await;
    }
    advance(SECOND).await;
    run_sweeper(SECOND).await;
    assert_eq!(cache.len(), 10_000);
}

/// Without repeats a mass expiry would take ten ticks; with them it is finished at the first.
#[tokio::test(start_paused = true)]
async fn sweep_repeats_while_repeat_at_is_reached() {
    let sweep = Sweep::default().every(100 * MS).sample(0.1).repeat_at(0.25);
    let cache = filled_and_swept(sweep, 200_000).await;
    for key in 0..200_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    advance(SECOND).await;
    run_sweeper(50 * MS).await;
    assert_eq!(cache.len(), 0);
    let report = cache.stats().last_sweep.unwrap();
    assert!(report.passes >= 10, "{report:?}");
    assert_eq!(report.expired, 200_000);
}

#[tokio::test(start_paused = true)]
async fn sweep_below_repeat_at_is_one_pass() {
    let sweep = Sweep::manual().sample(0.5).repeat_at(0.25);
    let cache = filled_and_swept(sweep, 10_000).await;
    for key in 0..10_000 {
        let ttl = if key % 5 == 0 { Duration::ZERO } else { SECOND };
        cache.set_ex(key, key, ttl).await;
    }
    let report = cache.sweep().await;
    assert_eq!(report.passes, 1);
    assert!((4_500..5_500).contains(&report.looked_at), "{report:?}");
    assert!((800..1_200).contains(&report.expired), "{report:?}");
    assert!(!report.out_of_budget && !report.held_back);
}

#[tokio::test(start_paused = true)]
async fn sweep_of_an_empty_cache_is_one_pass() {
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual()).build();
    let report = cache.sweep().await;
    assert_eq!((report.passes, report.looked_at, report.expired), (1, 0, 0));
}

/// Uses real time. The first pass is complete regardless of the budget, so a sweep with almost no budget leaves the
/// entries that the skipped passes would have found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budget_limits_repeats_but_never_the_first_pass() {
    let sweep = Sweep::default().every(3_600 * SECOND).sample(0.25).budget(1e-15);
    let cache = filled_and_swept(sweep, 100_000).await;
    for key in 0..100_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let report = cache.sweep().await;
    assert_eq!(report.passes, 1);
    assert!(report.out_of_budget, "{report:?}");
    assert!((20_000..30_000).contains(&report.expired), "{report:?}");
    assert!(report.elapsed > Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn sweeper_paused_until_resume_sweeper_removes_nothing_and_reads_stay_correct() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    cache.pause_sweeper();
    run_sweeper(60 * SECOND).await;
    assert_eq!((cache.len(), cache.live_len()), (100, 0));
    assert_eq!(cache.get(&1).await, None);
    let mut expired = 1;
    while expired < 100 {
        expired += cache.sweep().await.expired;
    }
    cache.set_ex(1, 1, SECOND).await;
    cache.resume_sweeper();
    run_sweeper(2 * SECOND + 100 * MS).await;
    assert_eq!(cache.len(), 0);
}

/// A task that never yields starves the sweeper, but its reads are still correct.
#[tokio::test(start_paused = true)]
async fn starved_sweeper_leaves_reads_correct() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    advance(SECOND).await;
    for key in 0..100 {
        assert_eq!(cache.get(&key).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn sweeper_ends_with_the_last_handle() {
    let value = Arc::new(());
    let cache: Cache<u64, Arc<()>> = Cache::new();
    let other = cache.clone();
    cache.set(1, value.clone()).await;
    let mut events = cache.events();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(alive(), 1);
    drop(cache);
    run_sweeper(SECOND).await;
    assert_eq!((alive(), Arc::strong_count(&value)), (1, 2), "one handle is left");
    drop(other);
    run_sweeper(MS).await;
    assert_eq!((alive(), Arc::strong_count(&value)), (0, 1));
    assert!(events.recv().await.is_none());
}

/// A long `advance` is one tick, not six hundred.
#[tokio::test(start_paused = true)]
async fn missed_ticks_are_skipped() {
    let cache: Cache<u64, u64> = Cache::new();
    sleep(250 * MS).await;
    let before = cache.stats().sweeps;
    advance(60 * SECOND).await;
    sleep(MS).await;
    assert_eq!(cache.stats().sweeps - before, 1);
}

/// The same seed makes the same choices. The hasher is fixed too, so complete reports are equal.
#[tokio::test(start_paused = true)]
async fn seed_makes_sweeps_repeatable() {
    async fn reports(seed: u64) -> Vec<SweepReport> {
        let sweep = Sweep::manual().sample(0.1).repeat_at(1.0).seed(seed);
        let hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::new();
        let cache: Cache<u64, u64, _> = Cache::builder().sweep(sweep).hasher(hasher).build();
        for key in 0..5_000 {
            cache.set_ex(key, key, SECOND * u32::from(key % 5 != 0)).await;
        }
        let mut reports = Vec::new();
        for _ in 0..10 {
            reports.push(cache.sweep().await);
        }
        reports
    }
    assert_eq!(reports(1).await, reports(1).await);
}

/// A sweep remembers that no entry of a window expires soon. Each operation that shortens a deadline discards this, so
/// no expired entry is left after a complete rotation.
#[tokio::test(start_paused = true)]
async fn skipped_windows_have_no_expired_entry() {
    let seed = 5;
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for (population, shards) in [(2_000, 64), (40_000, 4), (40_000, 2)] {
        let sweep = Sweep::manual().sample(0.3).repeat_at(1.0).seed(seed);
        let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).shards(shards).build();
        for key in 0..population {
            cache.set_ex(key, key, SECOND * random.random_range(5..600)).await;
        }
        let (mut looked_at, mut all) = (0, 0);
        for round in 0..60 {
            // Some rounds change few entries, so that most windows are skipped.
            for _ in 0..if round % 3 == 0 { population / 10 } else { 3 } {
                let key = random.random_range(0..2 * population);
                let ttl = SECOND * random.random_range(0..30);
                match random.random_range(0..10) {
                    0 => drop(cache.set(key, key).await),
                    1 => drop(cache.set_nx(key, key, Some(ttl)).await),
                    2 => drop(cache.get_ex(&key, ttl).await),
                    3 => drop(cache.expire(&key, ttl).await),
                    4 => drop(cache.expire_if(&key, ttl, When::Sooner).await),
                    5 => drop(cache.expire_at(&key, Instant::now() + ttl).await),
                    6 => drop(cache.extend(&key, ttl).await),
                    7 => drop(cache.set_keep_ttl(key, key).await),
                    8 => drop(cache.remove(&key).await),
                    _ => drop(cache.set_ex(key, key, ttl).await),
                }
            }
            advance(SECOND / 2).await;
            all += cache.len() as u64;
            for _ in 0..4 {
                looked_at += cache.sweep().await.looked_at;
            }
            assert_eq!(cache.len(), cache.live_len(), "round {round} of {population}");
        }
        // Shards with few entries are always examined completely.
        assert!(
            shards == 64 || looked_at < all,
            "{looked_at} of {all} examined: no window was skipped"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_sweeps_share_the_work() {
    let sweep = Sweep::manual().sample(1.0);
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
    for key in 0..20_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let (one, other) = tokio::join!(cache.sweep(), cache.sweep());
    assert_eq!(one.expired + other.expired, 20_000);
    assert!(one.expired > 0 && other.expired > 0, "each sweep yields between windows");
}

/// Readers and writers run on a `current_thread` runtime during a large sweep.
#[tokio::test(start_paused = true)]
async fn sweep_yields_to_the_runtime() {
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual().sample(1.0)).build();
    for key in 0..200_000 {
        // Enough entries that each window has an expired one.
        let ttl = if key % 8 == 0 { Duration::ZERO } else { SECOND };
        cache.set_ex(key, key, ttl).await;
    }
    let turns = Arc::new(AtomicUsize::new(0));
    let counter = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counter.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    cache.sweep().await;
    other.abort();
    assert!(turns.load(Relaxed) >= 200_000 / 8_192 - 1, "{turns:?}");
}

/// A cancelled sweep loses no event.
#[tokio::test(start_paused = true)]
async fn sweep_is_cancel_safe() {
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual().sample(1.0)).build();
    for key in 0..50_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let mut events = cache.events_lossless(100_000);
    assert_pending!(spawn(cache.sweep()).poll());
    let left = cache.len();
    assert!(left > 0 && left < 50_000, "{left}");
    while !cache.is_empty() {
        cache.sweep().await;
    }
    cache.shutdown().await;
    let mut heard = 0;
    while events.recv().await.is_some() {
        heard += 1;
    }
    assert_eq!(heard, 50_000);
}

#[tokio::test(start_paused = true)]
async fn shutdown_keeps_reads_and_writes_working_without_a_sweeper() {
    let cache: Cache<u64, u64> = Cache::new();
    let mut events = cache.events_lossless(1);
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    cache.set(1_000, 1).await;
    advance(SECOND).await;
    cache.shutdown().await;
    assert_eq!(cache.len(), 1, "due entries are removed although the stream has capacity for one");
    let mut heard = 0;
    while events.recv().await.is_some() {
        heard += 1;
    }
    assert_eq!(heard, 100);
    cache.set_ex(1, 1, SECOND).await;
    assert_eq!(cache.get(&1).await, Some(1));
    sleep(60 * SECOND).await;
    assert_eq!((cache.len(), cache.get(&1).await), (2, None));
    assert!(cache.events().recv().await.is_none(), "a stream of a shut-down cache has ended");
    cache.shutdown().await;
}

/// Uses real time: on a multi-thread runtime an entry is removed without any traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_expires_without_traffic_in_real_time() {
    let cache: Cache<u64, u64> = Cache::new();
    let mut events = cache.events_lossless(4);
    let start = Instant::now();
    cache.set_ex(1, 1, 50 * MS).await;
    let event = events.recv().await.unwrap();
    assert!(event.deadline.unwrap() - start >= 50 * MS);
    assert!(event.at >= event.deadline.unwrap());
    assert_eq!(cache.get(&1).await, None);
}

mod settings {
    use super::*;

    fn message(set: impl FnOnce() -> Sweep + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(set).expect_err("invalid settings must panic");
        panic.downcast_ref::<String>().expect("a formatted message").clone()
    }

    #[test]
    fn invalid_sweep_settings_panic_with_name_and_value() {
        type Setter = fn(Sweep, f64) -> Sweep;
        let setters: [(&str, Setter); 3] =
            [("sample", Sweep::sample), ("repeat_at", Sweep::repeat_at), ("budget", Sweep::budget)];
        for (name, set) in setters {
            for (value, shown) in [
                (f64::NAN, "NaN"),
                (0.0, "0"),
                (-0.0, "-0"),
                (-0.5, "-0.5"),
                (1.5, "1.5"),
                (f64::INFINITY, "inf"),
                (f64::NEG_INFINITY, "-inf"),
            ] {
                let message = message(move || set(Sweep::default(), value));
                let expected = format!("{name} must be above 0 and at most 1, got {shown}");
                assert_eq!(message, expected);
            }
            let _ = set(Sweep::default(), 1.0);
            let _ = set(Sweep::default(), f64::MIN_POSITIVE);
        }
        let message = message(|| Sweep::default().every(Duration::ZERO));
        assert_eq!(message, "every must be longer than zero, got 0ns");
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_valid_sweep_settings_work() {
        let sweep = Sweep::default().every(Duration::MAX).sample(1e-300).repeat_at(1e-300);
        let cache: Cache<u64, u64> = Cache::builder().sweep(sweep.budget(1e-300)).build();
        cache.set_ex(1, 1, Duration::ZERO).await;
        while !cache.is_empty() {
            cache.sweep().await;
        }
    }
}

/// Windows of live entries are skipped, even in tables that never grew.
#[tokio::test(start_paused = true)]
async fn windows_without_due_entries_are_not_examined() {
    for capacity in [0, 100, 200_000] {
        let builder = Cache::builder().sweep(Sweep::manual()).initial_capacity(capacity);
        let cache: Cache<u64, u64> = builder.build();
        for key in 0..100_000 {
            cache.set_ex(key, key, 100 * SECOND).await;
        }
        for seconds in [0, 50] {
            advance(seconds * SECOND).await;
            assert_eq!(cache.sweep().await.looked_at, 0);
        }
        cache.set_ex(1, 1, SECOND).await;
        advance(SECOND).await;
        let report = cache.sweep().await;
        assert_eq!(report.expired, 1);
        assert!(report.looked_at <= 64, "{report:?}");
        assert_eq!(
            cache.sweep().await.looked_at,
            0,
            "the remaining windows are known to have no due entry"
        );
    }
}

/// TTLs of months and years: a deadline too far ahead to be represented exactly in the index is still met.
#[tokio::test(start_paused = true)]
async fn entries_with_a_ttl_of_a_year_are_removed_in_time() {
    const DAY: Duration = Duration::from_secs(86_400);
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
    for day in 1..1_000 {
        cache.set_ex(day, day, day * DAY).await;
    }
    let mut looked_at = 0;
    for day in 1..1_000 {
        advance(DAY - MS).await;
        looked_at += cache.sweep().await.looked_at;
        assert_eq!(cache.len(), 1_000 - day as usize, "before the end of day {day}");
        advance(MS).await;
        looked_at += cache.sweep().await.looked_at;
        assert_eq!(cache.len(), 999 - day as usize, "after day {day}");
    }
    assert!(looked_at < 100_000, "{looked_at}");
}

#[tokio::test(start_paused = true)]
async fn pause_sweeper_stops_a_sweep_that_waits_for_a_subscriber() {
    let cache: Cache<u64, u64> = Cache::new();
    let mut events = cache.events_lossless(10);
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    run_sweeper(2 * SECOND).await;
    assert!(cache.len() >= 980, "the sweep waits for the subscriber");
    cache.pause_sweeper();
    let before = cache.len();
    for _ in 0..10 {
        events.recv().await.unwrap();
    }
    run_sweeper(10 * SECOND).await;
    assert_eq!(cache.len(), before, "the paused sweep has stopped");
    cache.resume_sweeper();
    for _ in 10..1_000 {
        timeout(SECOND, events.recv()).await.expect("the sweeper has resumed").unwrap();
    }
    assert!(cache.is_empty());
}

/// Tables shrink a part at a time. In between, each method finds every entry in either table.
#[tokio::test(start_paused = true)]
async fn every_entry_is_found_while_tables_shrink() {
    const KEYS: u64 = 60_000;
    let cache: Cache<u64, u64> = Cache::builder().shards(2).sweep(Sweep::manual()).build();
    let mut random = SmallRng::seed_from_u64(0x5eed_0015);
    let mut left = HashMap::new();
    for key in 0..KEYS {
        let stays = random.random_range(0..10) == 0;
        cache.set_ex(key, key, if stays { 1_000 * SECOND } else { SECOND }).await;
        if stays {
            left.insert(key, key);
        }
    }
    advance(SECOND).await;
    let mut dropped_early = 0;
    for _ in 0..1_000 {
        // The sweep is dropped at its first yield.
        dropped_early += u32::from(spawn(cache.sweep()).poll().is_pending());
        for _ in 0..100 {
            let key = random.random_range(0..KEYS);
            let value = random.random();
            match random.random_range(0..6) {
                0 => assert_eq!(cache.set(key, value).await, left.insert(key, value)),
                1 => assert_eq!(cache.remove(&key).await, left.remove(&key)),
                2 => {
                    let changed = cache.update(&key, |old| *old = value).await;
                    let expected = left.get_mut(&key).map(|old| *old = value);
                    assert_eq!(changed, expected);
                }
                3 => assert_eq!(cache.get_ex(&key, 500 * SECOND).await, left.get(&key).copied()),
                _ => assert_eq!(cache.get(&key).await, left.get(&key).copied()),
            }
        }
        assert_eq!(cache.live_len(), left.len());
    }
    assert!(dropped_early > 50, "{dropped_early}");
    assert_eq!(cache.len(), left.len());
    assert_eq!(cache.iter().collect::<HashMap<_, _>>(), left);
    cache.clear().await;
    assert!(cache.is_empty());
}

/// Without work the sweeper ticks rarely, but an entry written then is still removed in time.
#[tokio::test(start_paused = true)]
async fn resting_sweeper_is_woken_by_a_write() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..100 {
        cache.set_ex(key, key, 1_000 * SECOND).await;
    }
    let mut events = cache.events();
    let mut seconds = 0;
    for round in 0..20_u64 {
        let before = cache.stats().sweeps;
        sleep(100 * SECOND).await;
        seconds += 100;
        let sweeps = cache.stats().sweeps - before;
        assert!(sweeps <= 40, "{sweeps} sweeps in 100 s without work");
        if seconds >= 1_000 {
            return;
        }
        // Written at any time between two ticks, and due at any time after that.
        sleep(MS * (37 * round % 1_000) as u32).await;
        let ttl = MS * (113 * round % 2_500) as u32;
        let deadline = Instant::now() + ttl;
        match round % 3 {
            0 => _ = cache.set_ex(1_000, round, ttl).await,
            1 => assert!(cache.expire(&(round + 50), ttl).await),
            _ => {
                cache.set(1_000, round).await;
                cache.expire_at(&1_000, deadline).await;
            }
        }
        let event = timeout(ttl + SECOND, events.recv())
            .await
            .expect("the entry is removed")
            .unwrap()
            .unwrap();
        assert!(event.at <= deadline + 100 * MS, "round {round}: {:?}", event.lag());
    }
}
