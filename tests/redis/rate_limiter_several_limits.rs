//! Several limits for one key on Redis: the sequences of the oracle of the embedded limiter, on a real server whose
//! clock is stopped.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use fleeting::{
    Limit, State, Window,
    redis::{Client, Error, Permit, RateLimiter},
};

use super::rate_limiter::{client, strict};
use crate::{
    oracle::{self, Backend, Checked, Denial, Features, Outcome, Sequence, Setup, cases},
    servers::StoppedServer,
};

pub(super) struct OnRedis<'a> {
    server: &'a StoppedServer,
    limiter: RateLimiter<String>,
}

impl<'a> OnRedis<'a> {
    pub(super) fn new(server: &'a StoppedServer, client: &Client, setup: &Setup) -> Self {
        thread_local! {
            static NAMES: Cell<u64> = const { Cell::new(0) };
        }
        NAMES.set(NAMES.get() + 1);
        // Locally known denials expire by the clock of this process.
        let builder = strict(client, &format!("sequence {}", NAMES.get())).deny_cache(0);
        let builder = builder.window(setup.window);
        let limits = setup.plans[0].iter().cloned();
        let limiter = limits.fold(builder, |builder, limit| builder.limit(limit)).build().unwrap();
        Self { server, limiter }
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
    let most = at.map_or(Duration::ZERO, |at| at - begin).as_micros() as u64;
    let most = (most + 1).next_multiple_of(HALF_SECOND);
    let limit = limited.limit().clone();
    Err(Denial { least, most, is_ready_later: at.is_some(), limit })
}

impl Backend for OnRedis<'_> {
    type Permit = Permit;

    const SLACK: u64 = 1_000;
    const HAS_WAITERS: bool = false;

    fn now(&self) -> u64 {
        self.server.now()
    }

    async fn pass(&self, time: u64) {
        self.server.pass(Duration::from_micros(time));
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
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
    let features = Features { max_keys: false, calls: 40 };
    let play = async |sequence: &Sequence| -> Outcome {
        oracle::play(&OnRedis::new(&server, &client, &sequence.setup), sequence).await
    };
    oracle::run_sequences(800, features, play).await;
}

/// Runs a case for each window on a limiter with one limit.
async fn each_window(limit: Limit, case: impl AsyncFn(Window, OnRedis<'_>)) {
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10), Window::Gcra] {
        let plans = vec![vec![limit.clone()]];
        let setup = Setup { window, plans, max_keys: None, sweeps: false };
        case(window, OnRedis::new(&server, &client, &setup)).await;
    }
}

#[tokio::test]
async fn calls_by_a_short_limit_do_not_free_the_quota_of_a_long_one() {
    let logins = [Limit::per_hour(5)];
    each_window(Limit::per_second(100), async |window, limiter| {
        let mut admitted = 0;
        for _ in 0..300 {
            admitted += u32::from(limiter.check("ada", 1, Some(&logins)).await.is_ok());
            let other = limiter.check("ada", 1, None).await;
            assert!(other.is_ok(), "{window:?}: {other:?}");
            limiter.pass(2_000_000).await;
        }
        assert!((1..=5).contains(&admitted), "{window:?}: {admitted} logins");
    })
    .await;
}

#[tokio::test]
async fn quota_of_millions_per_second_is_admitted_again_in_time() {
    for quota in [1_000_000, 1_000_001, 10_000_000, 100_000_000] {
        each_window(Limit::per_second(quota), async |window, limiter| {
            let longest = if window == Window::Buckets(1) { 2_000_000 } else { 1_150_000 };
            for _ in 0..3 {
                let checked = limiter.check("ada", quota, None).await;
                assert!(checked.is_ok(), "{window:?}, {quota}: {checked:?}");
                limiter.pass(longest).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn nothing_is_in_use_by_any_limit_when_all_calls_were_refunded() {
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
    let limiter_of = |setup: &Setup| OnRedis::new(&server, &client, setup);
    cases::nothing_is_in_use_by_any_limit_when_all_calls_were_refunded(800, limiter_of).await;
}

#[tokio::test]
async fn debt_is_not_forgotten_while_other_limits_are_used() {
    let Some(server) = StoppedServer::start() else { return };
    let client = client(&server).await;
    let limiter_of = |setup: &Setup| OnRedis::new(&server, &client, setup);
    cases::debt_is_not_forgotten_while_other_limits_are_used(limiter_of).await;
}
