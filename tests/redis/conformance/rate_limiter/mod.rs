//! Checks, waits and permits of the embedded `RateLimiter` and of `redis::RateLimiter`.
//!
//! The clock is paused in memory and real on Redis, so windows are short and durations are checked within bounds.

mod checks;
mod permits;
mod waiting;

use std::{fmt::Debug, time::Duration};

use fleeting::{Limit, Limited, State, Window, redis};

use super::{client, fresh};

use crate::patience::patience;

type Embedded = fleeting::RateLimiter<String>;
type OnRedis = redis::RateLimiter<String>;
/// Outcome of a check. An error of the server fails the test.
type Checked<L> = Result<<L as Limiter>::Permit, Limited>;

/// All methods of a rate limiter that the cases call.
trait Limiter: Clone + Send + Sync + 'static {
    type Permit: Permit;

    async fn with_limits(window: Window, limits: &[Limit]) -> Self;
    async fn check(&self, key: &str) -> Checked<Self>;
    async fn check_n(&self, key: &str, cost: u32) -> Checked<Self>;
    async fn check_with(&self, key: &str, limits: &[Limit]) -> Checked<Self>;
    async fn check_n_with(&self, key: &str, cost: u32, limits: &[Limit]) -> Checked<Self>;
    async fn peek(&self, key: &str) -> State;
    async fn peek_with(&self, key: &str, limits: &[Limit]) -> State;
    async fn reset(&self, key: &str) -> bool;
    fn until_ready(&self, key: &str) -> impl Future<Output = Self::Permit> + Send;
    async fn until_ready_n(&self, key: &str, cost: u32) -> Checked<Self>;
    async fn until_ready_within(&self, key: &str, max_wait: Duration) -> Checked<Self>;
    fn stats(&self) -> Stats;
    fn denials(&self) -> Vec<(Limit, u64)>;
}

/// Counters that both limiters have.
struct Stats {
    admitted: u64,
    waited: u64,
    denied: u64,
    refunded: u64,
}

trait Permit: Debug + Send {
    fn remaining(&self) -> u32;
    async fn refund(self);
    async fn settle(self, actual: u32);
}

impl Permit for fleeting::Permit {
    fn remaining(&self) -> u32 {
        self.remaining()
    }

    async fn refund(self) {
        self.refund().await;
    }

    async fn settle(self, actual: u32) {
        self.settle(actual).await;
    }
}

impl Permit for redis::Permit {
    fn remaining(&self) -> u32 {
        self.remaining()
    }

    async fn refund(self) {
        self.refund().await.unwrap();
    }

    async fn settle(self, actual: u32) {
        self.settle(actual).await.unwrap();
    }
}

impl Limiter for Embedded {
    type Permit = fleeting::Permit;

    async fn with_limits(window: Window, limits: &[Limit]) -> Self {
        let builder = Self::builder().window(window);
        limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit)).build()
    }

    async fn check(&self, key: &str) -> Checked<Self> {
        self.check(key).await
    }

    async fn check_n(&self, key: &str, cost: u32) -> Checked<Self> {
        self.check_n(key, cost).await
    }

    async fn check_with(&self, key: &str, limits: &[Limit]) -> Checked<Self> {
        self.check_with(key, limits).await
    }

    async fn check_n_with(&self, key: &str, cost: u32, limits: &[Limit]) -> Checked<Self> {
        self.check_n_with(key, cost, limits).await
    }

    async fn peek(&self, key: &str) -> State {
        self.peek(key).await
    }

    async fn peek_with(&self, key: &str, limits: &[Limit]) -> State {
        self.peek_with(key, limits).await
    }

    async fn reset(&self, key: &str) -> bool {
        self.reset(key).await
    }

    async fn until_ready(&self, key: &str) -> fleeting::Permit {
        self.until_ready(key).await
    }

    async fn until_ready_n(&self, key: &str, cost: u32) -> Checked<Self> {
        self.until_ready_n(key, cost).await
    }

    async fn until_ready_within(&self, key: &str, max_wait: Duration) -> Checked<Self> {
        self.until_ready_within(key, max_wait).await
    }

    fn stats(&self) -> Stats {
        let stats = self.stats();
        Stats {
            admitted: stats.admitted,
            waited: stats.waited,
            denied: stats.denied,
            refunded: stats.refunded,
        }
    }

    fn denials(&self) -> Vec<(Limit, u64)> {
        self.denials()
    }
}

/// Separates denials from errors of the server, which fail the test.
fn checked(reply: Result<redis::Permit, redis::Error>) -> Checked<OnRedis> {
    match reply {
        Ok(permit) => Ok(permit),
        Err(redis::Error::Limited(limited)) => Err(limited),
        Err(error) => panic!("server error: {error:?}"),
    }
}

impl Limiter for OnRedis {
    type Permit = redis::Permit;

    async fn with_limits(window: Window, limits: &[Limit]) -> Self {
        let builder = Self::builder(&client().await, fresh("limiter"))
            .window(window)
            .on_error(redis::OnError::Deny)
            .timeout(patience());
        limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit)).build().unwrap()
    }

    async fn check(&self, key: &str) -> Checked<Self> {
        checked(self.check(key).await)
    }

    async fn check_n(&self, key: &str, cost: u32) -> Checked<Self> {
        checked(self.check_n(key, cost).await)
    }

    async fn check_with(&self, key: &str, limits: &[Limit]) -> Checked<Self> {
        checked(self.check_with(key, limits).await)
    }

    async fn check_n_with(&self, key: &str, cost: u32, limits: &[Limit]) -> Checked<Self> {
        checked(self.check_n_with(key, cost, limits).await)
    }

    async fn peek(&self, key: &str) -> State {
        self.peek(key).await.unwrap()
    }

    async fn peek_with(&self, key: &str, limits: &[Limit]) -> State {
        self.peek_with(key, limits).await.unwrap()
    }

    async fn reset(&self, key: &str) -> bool {
        self.reset(key).await.unwrap()
    }

    async fn until_ready(&self, key: &str) -> redis::Permit {
        self.until_ready(key).await.unwrap()
    }

    async fn until_ready_n(&self, key: &str, cost: u32) -> Checked<Self> {
        checked(self.until_ready_n(key, cost).await)
    }

    async fn until_ready_within(&self, key: &str, max_wait: Duration) -> Checked<Self> {
        checked(self.until_ready_within(key, max_wait).await)
    }

    fn stats(&self) -> Stats {
        let stats = self.stats();
        Stats {
            admitted: stats.admitted,
            waited: stats.waited,
            denied: stats.denied,
            refunded: stats.refunded,
        }
    }

    fn denials(&self) -> Vec<(Limit, u64)> {
        self.denials()
    }
}

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];
