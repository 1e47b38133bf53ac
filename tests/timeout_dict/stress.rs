//! A timeout dictionary on real threads: whatever they do, each entry is handled once.
//!
//! `FLEETING_SEED` sets what the threads choose.

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

const ENTRIES: u64 = 100_000;
const SETTERS: u64 = 4;
const TAKERS: u64 = 8;

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(600);

type Dict = TimeoutDict<u64, u64>;

/// How often each entry was handled.
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

    /// Waits until all are handled, and checks that each was once.
    async fn check(&self, dict: &Dict) {
        let start = Instant::now();
        while !self.all() {
            let count = self.count.load(Relaxed);
            assert!(start.elapsed() < PATIENCE, "only {count} are handled: some are lost");
            sleep(Duration::from_millis(1)).await;
        }
        // What would come twice may come late.
        sleep(Duration::from_millis(20)).await;
        let wrong: Vec<_> = (0..ENTRIES)
            .map(|key| (key, self.times[key as usize].load(Relaxed)))
            .filter(|(_, times)| *times != 1)
            .take(10)
            .collect();
        assert!(wrong.is_empty(), "not handled once, but so often: {wrong:?}");
        assert!(dict.is_empty().await);
    }
}

fn random(task: u64) -> SmallRng {
    let seed = std::env::var("FLEETING_SEED").map_or(2_015, |seed| seed.parse().expect("a number"));
    SmallRng::seed_from_u64(seed ^ task << 32)
}

/// Each sets its share, some of it twice or with another deadline first.
fn set_all(dict: &Dict) -> Vec<JoinHandle<()>> {
    let set = |setter| {
        let dict = dict.clone();
        tokio::spawn(async move {
            let mut random = random(setter);
            for key in (setter..ENTRIES).step_by(SETTERS as usize) {
                let ttl = Duration::from_micros(random.random_range(0..20_000));
                match random.random_range(0..10) {
                    0 => {
                        // Nobody has taken it: it is not due.
                        dict.set(key, !key, Duration::MAX).await;
                        assert!(dict.set_timeout(&key, ttl).await);
                    }
                    1 => {
                        dict.set(key, 0, Duration::from_secs(1_000)).await;
                        assert_eq!(dict.set(key, !key, ttl).await, Some(0));
                    }
                    _ => assert_eq!(dict.set(key, !key, ttl).await, None),
                }
                if random.random_bool(0.001) {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        })
    };
    (0..SETTERS).map(set).collect()
}

async fn join(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("a task that works does not panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_entry_is_taken_once() {
    let (dict, handled) = (Dict::new(), Handled::new());
    let setters = set_all(&dict);
    let takers = (0..TAKERS).map(|taker| {
        let (dict, handled) = (dict.clone(), handled.clone());
        tokio::spawn(async move {
            let mut random = random(100 + taker);
            while !handled.all() {
                let taken = dict.take_expired(random.random_range(1..50)).await;
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
async fn each_entry_goes_to_one_who_waits() {
    let (dict, handled) = (Dict::new(), Handled::new());
    let stop = Arc::new(AtomicBool::new(false));
    let waiters = (0..TAKERS).map(|waiter| {
        let (dict, handled, stop) = (dict.clone(), handled.clone(), stop.clone());
        tokio::spawn(async move {
            let mut random = random(200 + waiter);
            while !stop.load(Relaxed) {
                // Half of them give up now and then.
                let patience = match waiter % 2 {
                    0 => Duration::from_millis(50),
                    _ => Duration::from_micros(random.random_range(0..2_000)),
                };
                if let Ok((key, value)) = timeout(patience, dict.next_expired()).await {
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
    // So long that none is over, and so short that many are.
    for lease in [Duration::from_secs(1_000), Duration::from_micros(200)] {
        // What is dropped comes again at once, so that much of it meets.
        let dict = Dict::builder().backoff(Duration::ZERO, Duration::ZERO).build();
        let handled = Handled::new();
        let stop = Arc::new(AtomicBool::new(false));
        let dropped = Arc::new(AtomicU64::new(0));
        let setters = set_all(&dict);
        let claimers: Vec<_> = (0..TAKERS)
            .map(|claimer| {
                let work = Work {
                    dict: dict.clone(),
                    lease,
                    handled: handled.clone(),
                    stop: stop.clone(),
                    dropped: dropped.clone(),
                };
                tokio::spawn(work.until_stopped(claimer))
            })
            .collect();
        join(setters).await;
        handled.check(&dict).await;
        stop.store(true, Relaxed);
        join(claimers).await;
        let dropped = dropped.load(Relaxed);
        println!("lease {lease:?}: {dropped} claims were dropped");
        assert!(dropped > ENTRIES / 10, "too little happened for this to mean anything");
    }
}

struct Work {
    dict: Dict,
    lease: Duration,
    handled: Arc<Handled>,
    stop: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl Work {
    /// Of the claims, 20 % are dropped; so are some of the tasks that work, with all that they have claimed.
    async fn until_stopped(self, claimer: u64) {
        let work = Arc::new(self);
        let mut random = random(300 + claimer);
        while !work.stop.load(Relaxed) {
            let waits = random.random_bool(0.2);
            let seed = random.random();
            let some = tokio::spawn(work.clone().some(SmallRng::seed_from_u64(seed), waits));
            if random.random_bool(0.1) {
                yield_now().await;
                some.abort();
            }
            match some.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled(), "{error}"),
            }
        }
    }

    async fn some(self: Arc<Self>, mut random: SmallRng, waits: bool) {
        let claims = if waits {
            let next = timeout(Duration::from_millis(5), self.dict.next_claim(self.lease));
            next.await.into_iter().collect()
        } else {
            self.dict.claim_expired(random.random_range(1..50), self.lease).await
        };
        for claim in claims {
            let (key, value) = (*claim.key(), *claim.value());
            match random.random_range(0..100) {
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
