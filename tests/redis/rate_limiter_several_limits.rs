//! Several limits for one key on Redis: the sequences of the oracle of the embedded limiter, on a real server whose
//! clock is stopped.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, State,
    redis::{Client, Error, Permit, RateLimiter},
};

use super::rate_limiter::{client, server_time, strict};
use crate::{
    oracle::{self, Backend, Checked, Denial, Features, Outcome, Sequence, Setup},
    servers::{Server, program},
};

pub(super) struct OnRedis<'a> {
    server: &'a Server,
    limiter: RateLimiter<String>,
    now: &'a Cell<u64>,
}

impl<'a> OnRedis<'a> {
    pub(super) fn new(
        server: &'a Server,
        client: &Client,
        now: &'a Cell<u64>,
        setup: &Setup,
    ) -> Self {
        thread_local! {
            static NAMES: Cell<u64> = const { Cell::new(0) };
        }
        NAMES.set(NAMES.get() + 1);
        // Locally known denials expire by the clock of this process.
        let builder = strict(client, &format!("sequence {}", NAMES.get())).deny_cache(0);
        let builder = builder.window(setup.window);
        let limits = setup.plans[0].iter().cloned();
        let limiter = limits.fold(builder, |builder, limit| builder.limit(limit)).build().unwrap();
        Self { server, limiter, now }
    }
}

const HALF_SECOND: u64 = 500_000;

/// Returns the outcome of a call that began at `begin`. The wait that the server computed is between that until now and
/// that since the call began, rounded up.
fn checked(begin: Instant, reply: Result<Permit, Error>) -> Result<Permit, Denial> {
    let limited = match reply {
        Ok(permit) => return Ok(permit),
        Err(Error::Limited(limited)) => limited,
        Err(error) => panic!("server error: {error:?}"),
    };
    let least = limited.retry_after().as_micros() as u64;
    let at = limited.ready_at().map(tokio::time::Instant::into_std);
    // Rounded up, so that the next call has the same time in each run.
    let most =
        at.map_or(Duration::ZERO, |at| at - begin).as_millis().div_ceil(500) as u64 * HALF_SECOND;
    Err(Denial { least, most, is_ready_later: at.is_some(), limited })
}

impl Backend for OnRedis<'_> {
    type Permit = Permit;

    const SLACK: u64 = 1_000;
    const HAS_WAITERS: bool = false;

    fn now(&self) -> u64 {
        self.now.get()
    }

    async fn pass(&self, time: u64) {
        self.now.set(self.now.get() + time);
        self.server.stop_clock(self.now.get());
    }

    async fn check(&self, key: &str, cost: u32, limits: Option<&[Limit]>) -> Checked<Self> {
        let begin = Instant::now();
        let reply = match limits {
            Some(limits) => self.limiter.check_n_with(key, cost, limits).await,
            None => self.limiter.check_n(key, cost).await,
        };
        checked(begin, reply)
    }

    async fn peek(&self, key: &str, limits: &[Limit]) -> State {
        self.limiter.peek_with(key, limits).await.unwrap()
    }

    async fn refund(&self, permit: Permit) {
        permit.refund().await.unwrap();
    }

    async fn settle(&self, permit: Permit, actual: u32) {
        permit.settle(actual).await.unwrap();
    }

    async fn set_limits(&self, limits: Option<&[Limit]>) {
        match limits {
            Some(limits) => self.limiter.set_limits(limits.to_vec()).await.unwrap(),
            None => self.limiter.clear_limits().await.unwrap(),
        }
    }

    async fn reset(&self, key: &str) -> bool {
        self.limiter.reset(key).await.unwrap()
    }

    async fn until_ready_within(&self, key: &str, most: Duration) -> Checked<Self> {
        let begin = Instant::now();
        checked(begin, self.limiter.until_ready_within(key, most).await)
    }

    async fn give_up(&self, _: &str, _: u32) -> Option<Permit> {
        None
    }

    fn remaining(permit: &Permit) -> u32 {
        permit.remaining()
    }
}

#[tokio::test]
async fn random_sequences_keep_the_promises_of_several_limits() {
    // Valkey reads the clock from a counter of the processor, so it cannot be stopped. The scripts are the same.
    if program().contains("valkey") {
        return;
    }
    let server = Server::start_with_clock();
    let client = client(&server).await;
    let begin = server_time(&mut server.plain().await).await;
    let now = Cell::new(begin);
    let features = Features { max_keys: false, calls: 40 };
    let play = async |sequence: &Sequence| -> Outcome {
        server.stop_clock(now.get());
        oracle::play(&OnRedis::new(&server, &client, &now, &sequence.setup), sequence).await
    };
    oracle::run_sequences(700, features, play).await;
}
