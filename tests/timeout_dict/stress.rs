//! A timeout dictionary on real threads: each entry is handled exactly once.
//!
//! `FLEETING_SEED` sets the seed of the threads' choices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::TimeoutDict;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use crate::patience::patience;

const ENTRIES: u64 = 100_000;
const SETTERS: u64 = 4;
const TAKERS: u64 = 8;

type Dict = TimeoutDict<u64, u64>;

/// Counts how often each entry was handled.
struct Handled {
    times: Vec<AtomicU32>,
    count: AtomicU64,
}

impl Handled {
    fn new() -> Arc<Self> {
        let times = (0..ENTRIES).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { times, count: AtomicU64::new(0) })
    }

    fn handle(&self, key: u64, value: u64) {
        assert_eq!(value, !key, "the value of another key");
        self.times[key as usize].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    fn all(&self) -> bool {
        self.count.load(Relaxed) >= ENTRIES
    }

    /// Waits until all entries are handled, and checks that each was handled once.
    async fn check(&self, dict: &Dict) {
        let start = Instant::now();
        while !self.all() {
            let count = self.count.load(Relaxed);
            assert!(
                start.elapsed() < 4 * patience(),
                "only {count} entries are handled, the others are lost"
            );
            sleep(Duration::from_millis(1)).await;
        }
        // A second delivery may be late.
        sleep(Duration::from_millis(20)).await;
        let wrong: Vec<_> = (0..ENTRIES)
            .map(|key| (key, self.times[key as usize].load(Relaxed)))
            .filter(|(_, times)| *times != 1)
            .take(10)
            .collect();
        assert!(wrong.is_empty(), "entries (key, times) not handled exactly once: {wrong:?}");
        assert!(dict.is_empty().await);
    }
}

fn task_rng(task: u64) -> SmallRng {
    let seed = std::env::var("FLEETING_SEED").map_or(2_015, |seed| seed.parse().expect("a number"));
    SmallRng::seed_from_u64(seed ^ task << 32)
}

/// Each task sets its share of the entries, some of them twice or with another deadline first.
fn set_all(dict: &Dict) -> Vec<JoinHandle<()>> {
    let set = |setter| {
        let dict = dict.clone();
        tokio::spawn(async move {
            let mut rng = task_rng(setter);
            for key in (setter..ENTRIES).step_by(SETTERS as usize) {
                let ttl = Duration::from_micros(rng.random_range(0..20_000));
                match rng.random_range(0..10) {
                    0 => {
                        // The entry is not due, so no task has taken it.
                        dict.set(key, !key, Duration::MAX).await;
                        assert!(dict.set_timeout(&key, ttl).await);
                    }
                    1 => {
                        dict.set(key, 0, Duration::from_secs(1_000)).await;
                        assert_eq!(dict.set(key, !key, ttl).await, Some(0));
                    }
                    _ => assert_eq!(dict.set(key, !key, ttl).await, None),
                }
                if rng.random_bool(0.001) {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        })
    };
    (0..SETTERS).map(set).collect()
}

async fn join(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no task panics");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_entry_is_taken_once() {
    let (dict, handled) = (Dict::new(), Handled::new());
    let setters = set_all(&dict);
    let takers = (0..TAKERS).map(|taker| {
        let (dict, handled) = (dict.clone(), handled.clone());
        tokio::spawn(async move {
            let mut rng = task_rng(100 + taker);
            while !handled.all() {
                let taken = dict.take_expired(rng.random_range(1..50)).await;
                if taken.is_empty() {
                    yield_now().await;
                }
                taken.into_iter().for_each(|(key, value)| handled.handle(key, value));
            }
        })
    });
    let takers = takers.collect();
    join(setters).await;
    handled.check(&dict).await;
    join(takers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_entry_is_delivered_to_one_waiter() {
    let (dict, handled) = (Dict::new(), Handled::new());
    let stop = Arc::new(AtomicBool::new(false));
    let waiters = (0..TAKERS).map(|waiter| {
        let (dict, handled, stop) = (dict.clone(), handled.clone(), stop.clone());
        tokio::spawn(async move {
            let mut rng = task_rng(200 + waiter);
            while !stop.load(Relaxed) {
                // Half of the waiters are often cancelled.
                let wait_limit = match waiter % 2 {
                    0 => Duration::from_millis(50),
                    _ => Duration::from_micros(rng.random_range(0..2_000)),
                };
                if let Ok((key, value)) = timeout(wait_limit, dict.next_expired()).await {
                    handled.handle(key, value);
                }
            }
        })
    });
    let waiters = waiters.collect();
    join(set_all(&dict)).await;
    handled.check(&dict).await;
    stop.store(true, Relaxed);
    join(waiters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_entry_is_acked_once() {
    // One lease so long that none ends, and one so short that many end.
    for lease in [Duration::from_secs(1_000), Duration::from_micros(200)] {
        // Dropped claims are due again immediately, for more contention.
        let dict = Dict::builder().backoff(Duration::ZERO, Duration::ZERO).build();
        let handled = Handled::new();
        let stop = Arc::new(AtomicBool::new(false));
        let dropped = Arc::new(AtomicU64::new(0));
        let setters = set_all(&dict);
        let claimers: Vec<_> = (0..TAKERS)
            .map(|claimer| {
                let state = Claimer {
                    dict: dict.clone(),
                    lease,
                    handled: handled.clone(),
                    stop: stop.clone(),
                    dropped: dropped.clone(),
                };
                tokio::spawn(state.run_until_stopped(claimer))
            })
            .collect();
        join(setters).await;
        handled.check(&dict).await;
        stop.store(true, Relaxed);
        join(claimers).await;
        let dropped = dropped.load(Relaxed);
        println!("lease {lease:?}: {dropped} claims were dropped");
        assert!(dropped > ENTRIES / 10, "too few claims were dropped");
    }
}

struct Claimer {
    dict: Dict,
    lease: Duration,
    handled: Arc<Handled>,
    stop: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl Claimer {
    /// Drops 20 % of the claims, and aborts some of the tasks with all that they have claimed.
    async fn run_until_stopped(self, claimer: u64) {
        let state = Arc::new(self);
        let mut rng = task_rng(300 + claimer);
        while !state.stop.load(Relaxed) {
            let waits = rng.random_bool(0.2);
            let seed = rng.random();
            let task = tokio::spawn(state.clone().claim_some(SmallRng::seed_from_u64(seed), waits));
            if rng.random_bool(0.1) {
                yield_now().await;
                task.abort();
            }
            match task.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled(), "{error}"),
            }
        }
    }

    async fn claim_some(self: Arc<Self>, mut rng: SmallRng, waits: bool) {
        let claims = if waits {
            let next = timeout(Duration::from_millis(5), self.dict.next_claim(self.lease));
            next.await.into_iter().collect()
        } else {
            self.dict.claim_expired(rng.random_range(1..50), self.lease).await
        };
        for claim in claims {
            let (key, value) = (*claim.key(), *claim.value());
            match rng.random_range(0..100) {
                0..20 => {
                    self.dropped.fetch_add(1, Relaxed);
                    drop(claim);
                    continue;
                }
                20..22 => drop(claim.extend(self.lease).await),
                22..24 => yield_now().await,
                _ => {}
            }
            if claim.ack().await {
                self.handled.handle(key, value);
            }
        }
    }
}
