//! The sweeper: its bound, its settings, its reports, and that nothing it does makes a read wrong.

use std::{
    collections::HashMap,
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

/// Lets the sweeper work for `time`, tick by tick.
async fn let_sweep(time: Duration) {
    sleep(time).await;
}

/// Fills a cache and sweeps once: after growing, a pass begins anew and takes no sample, and that is not what the
/// tests of samples are about.
async fn settled(sweep: Sweep, population: u64) -> Cache<u64, u64> {
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
    for key in 0..population {
        cache.set(key, key).await;
    }
    for key in population..population + 2_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    assert_eq!(cache.sweep().await.expired, 2_000, "in each shard some");
    cache
}

/// `passes` manual sweeps must see all of a dead population, while live entries come and go around it
/// so that tables grow, shrink and are rehashed in place.
async fn bound_holds(population: u64, sample: f64, churn: u64) {
    // A ratio that is never reached: each sweep is exactly one pass.
    let sweep = Sweep::manual().sample(sample).repeat_at(1.0).seed(7);
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).shards(8).build();
    for live in 0..population {
        cache.set(live, live).await;
    }
    // A few dead ones among the living, so that no pass finds all expired and repeats.
    let dead = (population / 10).max(u64::from(population > 0));
    for key in 0..dead {
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
    assert_eq!(expired, dead, "population {population}, sample {sample}, churn {churn}");
}

#[tokio::test(start_paused = true)]
async fn every_entry_is_looked_at_within_the_passes_of_a_rotation() {
    for population in [0, 1, 1_000, 100_000] {
        for sample in [1.0, 0.5, 0.3, 0.1, 0.03] {
            bound_holds(population, sample, 0).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn also_while_tables_grow_and_entries_move() {
    for (population, churn) in [(1, 1_000), (1_000, 5), (1_000, 1_000), (100_000, 50_000)] {
        for sample in [0.3, 0.1] {
            bound_holds(population, sample, churn).await;
        }
    }
}

/// The clock's own bound: nothing dead is resident later than `every * ceil(1/sample)` after its
/// deadline, for populations that grow and shrink by a hundred times meanwhile.
#[tokio::test(start_paused = true)]
async fn staleness_is_bounded_in_time() {
    let (every, sample) = (100 * MS, 0.1);
    let bound = every * 10;
    for population in [0, 1, 1_000, 100_000] {
        let sweep = Sweep::default().every(every).sample(sample).repeat_at(1.0).seed(3);
        let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
        let lags = Arc::new(Mutex::new(Vec::new()));
        let seen = lags.clone();
        let task = cache.on_expired(async move |event| {
            seen.lock().unwrap().push(event.lag().unwrap());
        });
        let mut due = 0;
        for key in 0..population {
            // Deadlines over 3 s, a third of the population never dies.
            match key % 3 {
                0 => cache.set(key, key).await,
                _ => cache.set_ex(key, key, MS * (key % 3_000) as u32).await,
            };
            due += usize::from(key % 3 != 0);
        }
        for round in 0..50 {
            sleep(every).await;
            // Grows, then shrinks.
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
async fn the_defaults_let_nothing_linger_for_more_than_a_second() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..10_000 {
        cache.set(key, key).await;
        cache.set_ex(20_000 + key, key, SECOND).await;
    }
    advance(SECOND).await;
    let_sweep(SECOND).await;
    assert_eq!(cache.len(), 10_000);
}

/// Without repeats a storm would take ten ticks; with them it is over at the first.
#[tokio::test(start_paused = true)]
async fn a_sweep_repeats_while_the_ratio_is_reached() {
    let sweep = Sweep::default().every(100 * MS).sample(0.1).repeat_at(0.25);
    let cache = settled(sweep, 200_000).await;
    for key in 0..200_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    advance(SECOND).await;
    let_sweep(50 * MS).await;
    assert_eq!(cache.len(), 0);
    let report = cache.stats().last_sweep.unwrap();
    assert!(report.passes >= 10, "{report:?}");
    assert_eq!(report.expired, 200_000);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_below_the_ratio_is_one_pass() {
    let sweep = Sweep::manual().sample(0.5).repeat_at(0.25);
    let cache = settled(sweep, 10_000).await;
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
async fn a_sweep_of_nothing() {
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual()).build();
    let report = cache.sweep().await;
    assert_eq!((report.passes, report.looked_at, report.expired), (1, 0, 0));
}

/// Real time is the subject. The first pass is whole whatever the budget, so what a sweep with no
/// budget to speak of leaves must be what the passes not made would have found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_cuts_repeats_but_never_the_first_pass() {
    let sweep = Sweep::default().every(3_600 * SECOND).sample(0.25).budget(1e-15);
    let cache = settled(sweep, 100_000).await;
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
async fn paused_it_leaves_the_dead_where_they_are_and_reads_stay_right() {
    let cache: Cache<u64, u64> = Cache::new();
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    cache.pause_sweeper();
    let_sweep(60 * SECOND).await;
    assert_eq!((cache.len(), cache.live_len()), (100, 0));
    assert_eq!(cache.get(&1).await, None);
    let mut expired = 1;
    while expired < 100 {
        expired += cache.sweep().await.expired;
    }
    cache.set_ex(1, 1, SECOND).await;
    cache.resume_sweeper();
    let_sweep(2 * SECOND + 100 * MS).await;
    assert_eq!(cache.len(), 0);
}

/// A task that never yields starves the sweeper; the reads in it are right all the same.
#[tokio::test(start_paused = true)]
async fn starved_it_makes_no_read_wrong() {
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
async fn it_ends_with_the_last_handle() {
    let value = Arc::new(());
    let cache: Cache<u64, Arc<()>> = Cache::new();
    let other = cache.clone();
    cache.set(1, value.clone()).await;
    let mut events = cache.events();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(alive(), 1);
    drop(cache);
    let_sweep(SECOND).await;
    assert_eq!((alive(), Arc::strong_count(&value)), (1, 2), "a handle is left");
    drop(other);
    let_sweep(MS).await;
    assert_eq!((alive(), Arc::strong_count(&value)), (0, 1));
    assert!(events.recv().await.is_none());
}

/// One long `advance` is one tick, not six hundred.
#[tokio::test(start_paused = true)]
async fn missed_ticks_are_not_made_up() {
    let cache: Cache<u64, u64> = Cache::new();
    sleep(250 * MS).await;
    let before = cache.stats().sweeps;
    advance(60 * SECOND).await;
    sleep(MS).await;
    assert_eq!(cache.stats().sweeps - before, 1);
}

/// The same seed makes the same choices; the hasher is fixed too, so whole reports are equal.
#[tokio::test(start_paused = true)]
async fn a_seed_makes_sweeps_repeatable() {
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

/// What a sweep learned of a run of neighbours (that none of them dies soon) is forgotten by whatever
/// brings a deadline closer: after each rotation nothing dead is left.
#[tokio::test(start_paused = true)]
async fn what_is_passed_over_holds_nothing_dead() {
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
            // Rounds with few changes too: then most is passed over.
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
        // Shards of few entries are looked at whole.
        assert!(shards == 64 || looked_at < all, "{looked_at} of {all}: nothing was passed over");
    }
}

#[tokio::test(start_paused = true)]
async fn two_sweeps_at_once_share_the_work() {
    let sweep = Sweep::manual().sample(1.0);
    let cache: Cache<u64, u64> = Cache::builder().sweep(sweep).build();
    for key in 0..20_000 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let (one, other) = tokio::join!(cache.sweep(), cache.sweep());
    assert_eq!(one.expired + other.expired, 20_000);
    assert!(one.expired > 0 && other.expired > 0, "it yields between windows");
}

/// Readers and writers get their turn on a `current_thread` runtime while a large sweep goes on.
#[tokio::test(start_paused = true)]
async fn a_sweep_yields_to_the_runtime() {
    let cache: Cache<u64, u64> = Cache::builder().sweep(Sweep::manual().sample(1.0)).build();
    for key in 0..200_000 {
        // So many that something is dead wherever it looks.
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

/// A sweep that is dropped half-way has lost nothing.
#[tokio::test(start_paused = true)]
async fn a_sweep_is_cancel_safe() {
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
async fn after_shutdown_reads_and_writes_work_and_nothing_is_swept() {
    let cache: Cache<u64, u64> = Cache::new();
    let mut events = cache.events_lossless(1);
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    cache.set(1_000, 1).await;
    advance(SECOND).await;
    cache.shutdown().await;
    assert_eq!(cache.len(), 1, "what was due has left, though the subscriber had room for one");
    let mut heard = 0;
    while events.recv().await.is_some() {
        heard += 1;
    }
    assert_eq!(heard, 100);
    cache.set_ex(1, 1, SECOND).await;
    assert_eq!(cache.get(&1).await, Some(1));
    sleep(60 * SECOND).await;
    assert_eq!((cache.len(), cache.get(&1).await), (2, None));
    assert!(
        cache.events().recv().await.is_none(),
        "a stream of a cache that is shut down has ended"
    );
    cache.shutdown().await;
}

/// The real clock is the subject: on a multi-thread runtime an entry leaves without any traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expires_without_traffic_in_real_time() {
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
        let panic = std::panic::catch_unwind(set).expect_err("bad numbers must panic");
        panic.downcast_ref::<String>().expect("a formatted message").clone()
    }

    #[test]
    fn bad_numbers_panic_with_their_name_and_value() {
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
    async fn extreme_but_good_numbers_work() {
        let sweep = Sweep::default().every(Duration::MAX).sample(1e-300).repeat_at(1e-300);
        let cache: Cache<u64, u64> = Cache::builder().sweep(sweep.budget(1e-300)).build();
        cache.set_ex(1, 1, Duration::ZERO).await;
        while !cache.is_empty() {
            cache.sweep().await;
        }
    }
}

/// What lives is passed over, also in tables that never grew.
#[tokio::test(start_paused = true)]
async fn what_is_not_due_is_not_looked_at() {
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
        assert_eq!(cache.sweep().await.looked_at, 0, "what stayed is known");
    }
}

/// Times of months and years: what is too far ahead to be told exactly leaves in time all the same.
#[tokio::test(start_paused = true)]
async fn what_dies_in_a_year_leaves_in_time() {
    const DAY: Duration = Duration::from_secs(86_400);
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
    for day in 1..1_000 {
        cache.set_ex(day, day, day * DAY).await;
    }
    let mut looked_at = 0;
    for day in 1..1_000 {
        advance(DAY - MS).await;
        looked_at += cache.sweep().await.looked_at;
        assert_eq!(cache.len(), 1_000 - day as usize, "before day {day} is over");
        advance(MS).await;
        looked_at += cache.sweep().await.looked_at;
        assert_eq!(cache.len(), 999 - day as usize, "after day {day}");
    }
    assert!(looked_at < 100_000, "{looked_at}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_heard_by_a_sweep_that_is_held_back() {
    let cache: Cache<u64, u64> = Cache::new();
    let mut events = cache.events_lossless(10);
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    let_sweep(2 * SECOND).await;
    assert!(cache.len() >= 980, "it is held back");
    cache.pause_sweeper();
    let before = cache.len();
    for _ in 0..10 {
        events.recv().await.unwrap();
    }
    let_sweep(10 * SECOND).await;
    assert_eq!(cache.len(), before, "it goes on though it is paused");
    cache.resume_sweeper();
    for _ in 10..1_000 {
        timeout(SECOND, events.recv()).await.expect("it works again").unwrap();
    }
    assert!(cache.is_empty());
}

/// Memory goes back a part at a time. In between, every verb finds what it should, wherever that is.
#[tokio::test(start_paused = true)]
async fn while_memory_goes_back_every_entry_is_found() {
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
    let mut cut_short = 0;
    for _ in 0..1_000 {
        // Dropped wherever it first makes way for others.
        cut_short += u32::from(spawn(cache.sweep()).poll().is_pending());
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
    assert!(cut_short > 50, "{cut_short}");
    assert_eq!(cache.len(), left.len());
    assert_eq!(cache.iter().collect::<HashMap<_, _>>(), left);
    cache.clear().await;
    assert!(cache.is_empty());
}

/// Where nothing happens for long, ticks become rare; what is written then leaves in time all the same.
#[tokio::test(start_paused = true)]
async fn a_sweeper_that_rests_is_woken_in_time() {
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
        assert!((300..500).contains(&sweeps), "{sweeps} sweeps in 100 s with nothing to do");
        if seconds >= 1_000 {
            return;
        }
        // Anywhere between two ticks, and due at any time after.
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
        let event =
            timeout(ttl + SECOND, events.recv()).await.expect("it leaves").unwrap().unwrap();
        assert!(event.at <= deadline + 100 * MS, "round {round}: {:?}", event.lag());
    }
}
