//! Rate limits on real threads and by the real clock: no window holds more than its quota, and nothing
//! waits for ever.
//!
//! `FLEETING_STRESS_SECONDS` lengthens them (10 by default, of which each test takes a share).

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

const TASKS: u64 = 8;
const MILLISECOND: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(300);

/// When a call that passed was charged: somewhere between these.
#[derive(Clone, Copy, Debug)]
struct Admission {
    before: Instant,
    after: Instant,
}

/// What the tasks that hammer on one key saw.
#[derive(Default)]
struct Hammered {
    admissions: Vec<Admission>,
    denials: u64,
    /// In which spans of time, from the beginning, something was denied.
    full: BTreeSet<u128>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_window_of_a_hammered_log_holds_more_than_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    let hammered = hammer(Window::Log, quota, per).await;
    check_windows(&hammered, quota, per);
    check_not_idle(&hammered, quota);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_window_of_hammered_buckets_holds_more_than_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    for n in [10, 100] {
        let hammered = hammer(Window::Buckets(n), quota, per).await;
        check_windows(&hammered, quota, per);
        check_not_idle(&hammered, quota);
    }
}

/// Where there is room, a coarse clock may do: it must not take a call for older than it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_comes_after_a_pause_counts_for_all_of_its_window() {
    let (quota, per) = (100, 50 * MILLISECOND);
    let mut random = random(0x5eed_0103, 0);
    let limiter = |window| RateLimiter::builder().window(window).limit(Limit::new(quota, per));
    let limiters = [Window::Log, Window::Buckets(10)].map(|window| limiter(window).build());
    let end = Instant::now() + seconds(0.2);
    for round in 0_u64.. {
        for limiter in &limiters {
            limiter.check(&round).await.expect("nothing is in use");
            sleep(random.random_range(6_000..20_000) * Duration::from_micros(1)).await;
            let before = Instant::now();
            limiter.check_n(&round, quota - 1).await.expect("one is in use");
            // The first call alone would make room for one.
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
async fn no_window_of_a_hammered_gcra_holds_twice_the_quota() {
    let (quota, per) = (1_000, 50 * MILLISECOND);
    let hammered = hammer(Window::Gcra, quota, per).await;
    check_windows(&hammered, 2 * quota - 1, per);
    check_not_idle(&hammered, quota - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn those_who_wait_and_give_up_on_many_threads_leave_the_others_their_turn() {
    let (quota, per) = (5, 5 * MILLISECOND);
    let limiter: RateLimiter<u64> =
        RateLimiter::builder().limit(Limit::new(quota, per)).name("queue").build();
    let end = Instant::now() + seconds(0.1);
    let wait = |task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut random = random(0x5eed_0101, task);
            let mut admissions = Vec::new();
            while Instant::now() < end {
                let before = Instant::now();
                let patience = random.random_range(0..20_000) * Duration::from_micros(1);
                let passed = match random.random_range(0..3) {
                    0 => limiter.until_ready_within(&7, patience).await.is_ok(),
                    1 => timeout(patience, limiter.until_ready(&7)).await.is_ok(),
                    _ => {
                        limiter.until_ready(&7).await;
                        true
                    }
                };
                if passed {
                    admissions.push(Admission { before, after: Instant::now() });
                }
            }
            admissions
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(wait).collect();
    let mut hammered = Hammered::default();
    for task in tasks {
        hammered.admissions.extend(within("each waiter has its turn", task).await.unwrap());
    }
    // Their waits make what is certain wide: it is the order, not the count, that is hard here.
    check_windows(&hammered, quota, per);
    assert!(!hammered.admissions.is_empty(), "nobody was let in");
    within("the queue is empty", limiter.until_ready(&7)).await;
}

/// Who is charged and about to leave the line is not counted twice: there is room for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_sent_away_for_one_that_has_been_let_in() {
    const CALLS: u32 = 8;

    for round in 0..500_u64 {
        let limit = Limit::new(4 * CALLS, Duration::from_secs(3_600));
        let limiter: RateLimiter<u64> = RateLimiter::builder().limit(limit).shards(2).build();
        let wait = |_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..CALLS {
                    let waited = limiter.until_ready_within(&round, Duration::from_secs(60)).await;
                    waited.expect("there is room for all");
                }
            })
        };
        let tasks: Vec<_> = (0..4).map(wait).collect();
        for task in tasks {
            within("each is let in", task).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_refunds_and_resets_at_random_block_nobody_and_leave_nothing() {
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
        within("the keys leave", async {
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
    let mut random = random(0x5eed_0102, task);
    let mut permits: Vec<Permit> = Vec::new();
    let plan = [Limit::new(15, 30 * MILLISECOND)];
    for calls in 0_u64.. {
        if calls % 64 == 0 && Instant::now() >= end {
            return;
        }
        let key = random.random_range(0..64);
        let cost = random.random_range(1..5);
        let permit = match random.random_range(0..1_000) {
            0..500 => limiter.check(&key).await.ok(),
            500..700 => limiter.check_n(&key, cost).await.ok(),
            700..750 => limiter.check_n_with(&key, cost, &plan).await.ok(),
            750..755 => {
                let patience = random.random_range(0..3) * MILLISECOND;
                limiter.until_ready_within(&key, patience).await.ok()
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
                // Time in which keys are idle and leave.
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
async fn hammer(window: Window, quota: u32, per: Duration) -> Hammered {
    let limiter: RateLimiter<u64> =
        RateLimiter::builder().window(window).limit(Limit::new(quota, per)).build();
    let start = Instant::now();
    // Ten windows at least.
    let end = start + seconds(0.1).max(10 * per);
    // What is in use at one moment was charged in this span and the one before it.
    let span = match window {
        Window::Buckets(n) => per + per / n as u32,
        _ => per,
    };
    let span = span.as_micros();
    let hammer = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut seen = Hammered::default();
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
    let tasks: Vec<JoinHandle<_>> = (0..TASKS).map(hammer).collect();
    let mut hammered = Hammered::default();
    for task in tasks {
        let seen = within("each task ends", task).await.unwrap();
        hammered.admissions.extend(seen.admissions);
        hammered.denials += seen.denials;
        hammered.full.extend(seen.full);
    }
    let (admitted, denied) = (hammered.admissions.len() as u64, hammered.denials);
    let spans = hammered.full.len();
    println!("{window:?}: {admitted} admitted, {denied} denied in {spans} spans of time");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied), (admitted, denied), "what was decided is counted");
    hammered
}

/// Those that began after one, and had ended before `per` was over since it began, were all charged in one
/// window.
fn check_windows(hammered: &Hammered, quota: u32, per: Duration) {
    let mut admissions = hammered.admissions.clone();
    admissions.sort_by_key(|admission| admission.before);
    let mut most = 0;
    for (index, first) in admissions.iter().enumerate() {
        let end = first.before + per;
        let begun = admissions[index..].iter().take_while(|admission| admission.before < end);
        let certain = begun.filter(|admission| admission.after < end).count();
        assert!(certain <= quota as usize, "{certain} passed within {per:?}, not {quota}");
        most = most.max(certain);
    }
    println!("{most} of {quota} passed in the fullest window");
}

/// In each span in which something was denied, or in the one before it, as much had passed as may.
fn check_not_idle(hammered: &Hammered, quota: u32) {
    let (admitted, spans) = (hammered.admissions.len(), hammered.full.len());
    let least = spans * quota as usize / 2;
    assert!(admitted >= least, "only {admitted} passed in {spans} spans of {quota}");
    assert!(hammered.denials > 0, "nothing was denied, so nothing was tried");
}

fn random(seed: u64, task: u64) -> SmallRng {
    println!("seed {seed:#x}, task {task}");
    SmallRng::seed_from_u64(seed ^ (task << 32))
}

fn seconds(share: f64) -> Duration {
    let seconds = std::env::var("FLEETING_STRESS_SECONDS")
        .map_or(10.0, |text| text.parse().expect("FLEETING_STRESS_SECONDS must be a number"));
    Duration::from_secs_f64(seconds * share)
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let patience = PATIENCE + seconds(1.0);
    let ended = timeout(patience, future).await;
    ended.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}
