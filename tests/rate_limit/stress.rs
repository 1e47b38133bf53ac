//! Rate limits on real threads and with the real clock: no window exceeds its quota, and no waiter waits forever.
//!
//! `FLEETING_STRESS_SECONDS` sets the total duration (4 by default, of which each test takes a share).

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{Limit, Permit, RateLimiter, Sweep, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use crate::patience::patience;

const TASKS: u64 = 8;
const MILLISECOND: Duration = Duration::from_millis(1);

/// Times between which an admitted call was charged.
#[derive(Clone, Copy, Debug)]
struct Admission {
    before: Instant,
    after: Instant,
}

/// Results of the tasks that check one key as fast as they can.
#[derive(Default)]
struct Observed {
    admissions: Vec<Admission>,
    denials: u64,
    /// Spans of time, counted from the start, in which a check was denied.
    full: BTreeSet<u128>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn log_under_contention_never_exceeds_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    let observed = check_concurrently(Window::Log, quota, per).await;
    check_windows(&observed, quota, per);
    check_not_idle(&observed, quota);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn buckets_under_contention_never_exceed_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    for n in [10, 100] {
        let observed = check_concurrently(Window::Buckets(n), quota, per).await;
        check_windows(&observed, quota, per);
        check_not_idle(&observed, quota);
    }
}

/// A coarse clock may be used while quota is left: it must not make a charge older than it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn charge_after_a_pause_counts_for_its_whole_window() {
    let (quota, per) = (100, 50 * MILLISECOND);
    let mut random = random(0x5eed_0103, 0);
    let limiter = |window| RateLimiter::builder().window(window).limit(Limit::new(quota, per));
    let limiters = [Window::Log, Window::Buckets(10)].map(|window| limiter(window).build());
    let end = Instant::now() + seconds(0.2);
    for round in 0_u64.. {
        for limiter in &limiters {
            limiter.check(&round).await.expect("no usage yet");
            sleep(random.random_range(6_000..20_000) * Duration::from_micros(1)).await;
            let before = Instant::now();
            limiter.check_n(&round, quota - 1).await.expect("one unit is in use");
            // If the first call had left the window, one unit would be free.
            while limiter.check_n(&round, 2).await.is_err() {}
            let since = before.elapsed();
            assert!(
                since >= per,
                "more than {quota} within {since:?} in round {round}: {limiter:?}"
            );
        }
        if Instant::now() >= end {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gcra_under_contention_never_admits_twice_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    let observed = check_concurrently(Window::Gcra, quota, per).await;
    check_windows(&observed, 2 * quota - 1, per);
    check_not_idle(&observed, quota - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_that_give_up_concurrently_do_not_block_the_others() {
    let (quota, per) = (5, 5 * MILLISECOND);
    let limiter: RateLimiter<u64> =
        RateLimiter::builder().limit(Limit::new(quota, per)).name("queue").build();
    let end = Instant::now() + seconds(0.1);
    let wait = |task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut random = random(0x5eed_0101, task);
            let mut admissions = Vec::new();
            // At least once, however late the task begins.
            loop {
                let before = Instant::now();
                let max_wait = random.random_range(0..20_000) * Duration::from_micros(1);
                let passed = match random.random_range(0..3) {
                    0 => limiter.until_ready_within(&7, max_wait).await.is_ok(),
                    1 => timeout(max_wait, limiter.until_ready(&7)).await.is_ok(),
                    _ => {
                        limiter.until_ready(&7).await;
                        true
                    }
                };
                if passed {
                    admissions.push(Admission { before, after: Instant::now() });
                }
                if Instant::now() >= end {
                    return admissions;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(wait).collect();
    let mut observed = Observed::default();
    for task in tasks {
        observed.admissions.extend(within("each waiter passes", task).await.unwrap());
    }
    // Waiting makes the spans of charges long, so the order is tested here, not the count.
    check_windows(&observed, quota, per);
    assert!(!observed.admissions.is_empty(), "no waiter was admitted");
    within("the queue is empty", limiter.until_ready(&7)).await;
}

/// A call that is charged and about to leave the queue must not be counted twice: all calls fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiter_that_was_admitted_does_not_count_against_the_next() {
    const CALLS: u32 = 8;

    for round in 0..500_u64 {
        let limit = Limit::new(4 * CALLS, Duration::from_secs(3_600));
        let limiter: RateLimiter<u64> = RateLimiter::builder().limit(limit).shards(2).build();
        let wait = |_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..CALLS {
                    let waited = limiter.until_ready_within(&round, Duration::from_secs(60)).await;
                    waited.expect("all calls fit");
                }
            })
        };
        let tasks: Vec<_> = (0..4).map(wait).collect();
        for task in tasks {
            within("each call is admitted", task).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_checks_refunds_and_resets_do_not_deadlock_or_leak_keys() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let limiter: RateLimiter<u64> = RateLimiter::builder()
            .window(window)
            .limit(Limit::new(10, 20 * MILLISECOND))
            .limit(Limit::new(20, 60 * MILLISECOND))
            .max_keys(48)
            .shards(4)
            .sweep(Sweep::default().every(2 * MILLISECOND).sample(0.5).seed(7))
            .build();
        let end = Instant::now() + seconds(0.1);
        let passed = Arc::new(AtomicU64::new(0));
        let work = |task| tokio::spawn(work_alone(limiter.clone(), task, end, passed.clone()));
        let tasks: Vec<_> = (0..TASKS).map(work).collect();
        for task in tasks {
            within("each task ends", task).await.unwrap();
        }
        let stats = limiter.stats();
        println!("{window:?}: {stats:?}");
        assert_eq!(stats.admitted, passed.load(Relaxed), "{window:?}");
        assert!(stats.denied > 0 && stats.refunded > 0 && stats.overflowed > 0, "{stats:?}");
        within("idle keys are removed", async {
            while limiter.stats().keys > 0 {
                sleep(MILLISECOND).await;
            }
        })
        .await;
        sleep(60 * MILLISECOND).await;
        for key in 0..48 {
            assert_eq!(limiter.peek(&key).await.remaining(), 10, "key {key}: {window:?}");
            assert!(limiter.check_n(&key, 10).await.is_ok());
        }
    }
}

async fn work_alone(limiter: RateLimiter<u64>, task: u64, end: Instant, passed: Arc<AtomicU64>) {
    /// Enough for each kind of call, however late the task begins.
    const LEAST: u64 = 1 << 14;

    let mut random = random(0x5eed_0102, task);
    let mut permits: Vec<Permit> = Vec::new();
    let plan = [Limit::new(15, 30 * MILLISECOND)];
    for calls in 0_u64.. {
        if calls >= LEAST && calls % 64 == 0 && Instant::now() >= end {
            return;
        }
        let key = random.random_range(0..64);
        let cost = random.random_range(1..5);
        let permit = match random.random_range(0..1_000) {
            0..500 => limiter.check(&key).await.ok(),
            500..700 => limiter.check_n(&key, cost).await.ok(),
            700..750 => limiter.check_n_with(&key, cost, &plan).await.ok(),
            750..755 => {
                let max_wait = random.random_range(0..3) * MILLISECOND;
                limiter.until_ready_within(&key, max_wait).await.ok()
            }
            755..850 => {
                assert!(limiter.peek(&key).await.remaining() <= 10);
                None
            }
            850..870 => {
                limiter.reset(&key).await;
                None
            }
            870..980 if !permits.is_empty() => {
                let permit = permits.swap_remove(random.random_range(0..permits.len()));
                permit.refund().await;
                None
            }
            980..990 => {
                yield_now().await;
                None
            }
            990..995 => {
                // Time for keys to become idle and be removed.
                sleep(random.random_range(0..5) * MILLISECOND).await;
                None
            }
            _ => None,
        };
        if let Some(permit) = permit {
            passed.fetch_add(1, Relaxed);
            permits.push(permit);
        }
        if permits.len() > 100 {
            permits.clear();
        }
    }
}

/// Lets all tasks check one key as fast as they can.
async fn check_concurrently(window: Window, quota: u32, per: Duration) -> Observed {
    let limiter: RateLimiter<u64> =
        RateLimiter::builder().window(window).limit(Limit::new(quota, per)).build();
    let start = Instant::now();
    // At least ten windows.
    let end = start + seconds(0.1).max(10 * per);
    // Usage at any time was charged in the present span and the one before it.
    let span = match window {
        Window::Buckets(n) => per + per / n as u32,
        _ => per,
    };
    let span = span.as_micros();
    let check_concurrently = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut seen = Observed::default();
            loop {
                let before = Instant::now();
                if before >= end {
                    return seen;
                }
                let passed = limiter.check(&7).await.is_ok();
                let after = Instant::now();
                if passed {
                    seen.admissions.push(Admission { before, after });
                    continue;
                }
                seen.denials += 1;
                let [begun, ended] = [before, after].map(|at| (at - start).as_micros() / span);
                if begun == ended {
                    seen.full.insert(begun);
                }
            }
        })
    };
    let tasks: Vec<JoinHandle<_>> = (0..TASKS).map(check_concurrently).collect();
    let mut observed = Observed::default();
    for task in tasks {
        let seen = within("each task ends", task).await.unwrap();
        observed.admissions.extend(seen.admissions);
        observed.denials += seen.denials;
        observed.full.extend(seen.full);
    }
    let (admitted, denied) = (observed.admissions.len() as u64, observed.denials);
    let spans = observed.full.len();
    println!("{window:?}: {admitted} admitted, {denied} denied in {spans} spans of time");
    let stats = limiter.stats();
    assert_eq!(
        (stats.admitted, stats.denied),
        (admitted, denied),
        "stats differ from the decisions"
    );
    observed
}

/// Admissions that began after another one began, and ended less than `per` after it, were all charged in one window.
fn check_windows(observed: &Observed, quota: u32, per: Duration) {
    let mut admissions = observed.admissions.clone();
    admissions.sort_by_key(|admission| admission.before);
    let mut most = 0;
    for (index, first) in admissions.iter().enumerate() {
        let end = first.before + per;
        let begun = admissions[index..].iter().take_while(|admission| admission.before < end);
        let certain = begun.filter(|admission| admission.after < end).count();
        assert!(certain <= quota as usize, "{certain} passed within {per:?}, the quota is {quota}");
        most = most.max(certain);
    }
    println!("{most} of {quota} passed in the fullest window");
}

/// If a check was denied in a span, a whole quota was admitted in that span and the one before it.
fn check_not_idle(observed: &Observed, quota: u32) {
    let (admitted, spans) = (observed.admissions.len(), observed.full.len());
    let least = spans * quota as usize / 2;
    assert!(admitted >= least, "only {admitted} passed in {spans} spans of a quota of {quota}");
    assert!(observed.denials > 0, "nothing was denied, so nothing was tested");
}

fn random(seed: u64, task: u64) -> SmallRng {
    println!("seed {seed:#x}, task {task}");
    SmallRng::seed_from_u64(seed ^ (task << 32))
}

fn seconds(share: f64) -> Duration {
    let seconds = std::env::var("FLEETING_STRESS_SECONDS")
        .map_or(4.0, |text| text.parse().expect("FLEETING_STRESS_SECONDS must be a number"));
    Duration::from_secs_f64(seconds * share)
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = 2 * patience() + seconds(1.0);
    let ended = timeout(limit, future).await;
    ended.unwrap_or_else(|_| panic!("timed out after {limit:?}: {what}"))
}
