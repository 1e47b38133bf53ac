//! Several limits for one key: the oracle on the limiter in memory, and single promises.

mod promises;

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    task::Poll,
    time::Duration,
};

use fleeting::{Limit, Limited, Permit, RateLimiter, State, Sweep};
use tokio::time::{Instant, advance};
use tokio_test::task;

use crate::oracle::{self, Backend, Checked, Denial, Features, Outcome, Sequence, Setup};

/// Not seeded, so that a sequence has the same result in each run.
type Hasher = BuildHasherDefault<DefaultHasher>;

pub(crate) struct Embedded {
    limiter: RateLimiter<String, Hasher>,
    limits: Vec<Limit>,
    begin: Instant,
}

impl Embedded {
    pub(crate) fn new(setup: &Setup) -> Self {
        let limits = setup.plans[0].clone();
        let sweep = if setup.sweeps { Sweep::default() } else { Sweep::manual() };
        let builder = RateLimiter::builder().window(setup.window).sweep(sweep.seed(1)).shards(2);
        let builder = limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit));
        let builder = match setup.max_keys {
            Some(keys) => builder.max_keys(keys),
            None => builder,
        };
        let limiter = builder.hasher(Hasher::default()).build();
        Self { limiter, limits, begin: Instant::now() }
    }
}

fn denial(limited: Limited) -> Denial {
    let wait = limited.retry_after().as_nanos().div_ceil(1_000) as u64;
    let is_ready_later = limited.ready_at().is_some();
    Denial { least: wait, most: wait, is_ready_later, limit: limited.limit().clone() }
}

impl Backend for Embedded {
    type Permit = Permit;

    const SLACK: u64 = 0;
    const HAS_WAITERS: bool = true;

    fn now(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    async fn pass(&self, time: u64) {
        advance(Duration::from_micros(time)).await;
    }

    async fn check(&self, key: &str, cost: u32, limits: Option<&[Limit]>) -> Checked<Self> {
        let checked = match limits {
            Some(limits) => self.limiter.check_n_with(key, cost, limits).await,
            None => self.limiter.check_n(key, cost).await,
        };
        checked.map_err(denial)
    }

    async fn peek(&self, key: &str, limits: &[Limit]) -> State {
        self.limiter.peek_with(key, limits).await
    }

    async fn refund(&self, permit: Permit) {
        permit.refund().await;
    }

    async fn settle(&self, permit: Permit, actual: u32) {
        permit.settle(actual).await;
    }

    async fn set_limits(&self, limits: Option<&[Limit]>) {
        self.limiter.set_limits(limits.unwrap_or(&self.limits).to_vec());
    }

    async fn reset(&self, key: &str) -> bool {
        self.limiter.reset(key).await
    }

    async fn until_ready_within(&self, key: &str, most: Duration) -> Checked<Self> {
        self.limiter.until_ready_within(key, most).await.map_err(denial)
    }

    async fn give_up(&self, key: &str, polls: u32) -> Option<Permit> {
        let mut waiter = task::spawn(self.limiter.until_ready(key));
        for _ in 0..polls {
            if let Poll::Ready(permit) = waiter.poll() {
                return Some(permit);
            }
        }
        None
    }

    fn remaining(permit: &Permit) -> u32 {
        permit.remaining()
    }
}

#[tokio::test(start_paused = true)]
async fn random_sequences_keep_the_promises_of_several_limits() {
    let features = Features { max_keys: true, calls: 40 };
    let play = async |sequence: &Sequence| -> Outcome {
        oracle::play(&Embedded::new(&sequence.setup), sequence).await
    };
    oracle::run_sequences(500, features, play).await;
}
