//! `until_ready_within`: which calls are denied immediately, and the decision at the end of the maximum wait.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleeting::{Limit, Limited, Permit, RateLimiter, Window};
use proptest::{collection::vec, prelude::*};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep_until},
};

use crate::{
    limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS},
    sequences,
};

const KEY: u8 = 1;

/// Starts a waiter for `cost` units, which has joined the queue when this returns.
async fn wait_for(limiter: &RateLimiter<u8>, cost: u32) -> JoinHandle<Result<Permit, Limited>> {
    let limiter = limiter.clone();
    joined(async move { limiter.until_ready_n(&KEY, cost).await }).await
}

async fn wait_within(
    limiter: &RateLimiter<u8>,
    max_wait: Duration,
) -> JoinHandle<Result<Permit, Limited>> {
    let limiter = limiter.clone();
    joined(async move { limiter.until_ready_within(&KEY, max_wait).await }).await
}

async fn joined<T: Send + 'static>(
    waiter: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task = tokio::spawn(waiter);
    // Several times, since a call may yield before it begins.
    for _ in 0..3 {
        yield_now().await;
    }
    task
}

#[tokio::test(start_paused = true)]
async fn gcra_estimates_a_wait_behind_a_costly_waiter_exactly() {
    // Per limit: units used, cost of the waiter ahead, and time at which a call of one unit passes behind it.
    let cases = [
        (Limit::new(10, 10 * SECOND), 1, 10, 2 * SECOND),
        (Limit::new(10, 10 * SECOND), 9, 10, 10 * SECOND),
        (Limit::new(10, 10 * SECOND), 10, 10, 11 * SECOND),
        (Limit::new(2, 12 * MILLISECOND), 1, 2, 12 * MILLISECOND),
    ];
    for (limit, used, ahead, passes_after) in cases {
        let builder = RateLimiter::<u8>::builder().window(Window::Gcra);
        let limiter = builder.limit(limit.clone()).build();
        limiter.check_n(&KEY, used).await.unwrap();
        let ahead = wait_for(&limiter, ahead).await;
        let start = Instant::now();
        for max_wait in [Duration::ZERO, passes_after - NANOSECOND] {
            let limited = limiter.until_ready_within(&KEY, max_wait).await.unwrap_err();
            let denied = (start.elapsed(), limited.retry_after());
            assert_eq!(denied, (Duration::ZERO, passes_after), "{limit}, {used} units used");
        }
        let passed = limiter.until_ready_within(&KEY, passes_after).await;
        assert!(passed.is_ok(), "{limit}, {used} units used");
        assert_eq!(start.elapsed(), passes_after, "{limit}, {used} units used");
        assert!(ahead.await.unwrap().is_ok());
    }
}

/// A refund wakes the head, whose timer is then started after those of the waiters behind it.
#[tokio::test(start_paused = true)]
async fn waiter_whose_maximum_wait_ends_when_units_are_free_is_not_overtaken() {
    for limits in [
        vec![Limit::new(4, 28 * MILLISECOND)],
        vec![Limit::new(3, 18 * MILLISECOND), Limit::new(4, 28 * MILLISECOND)],
    ] {
        let builder = RateLimiter::<u8>::builder();
        let builder = limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
        let limiter = builder.build();
        let old = limiter.check(&KEY).await.unwrap();
        advance(MINUTE).await;
        let start = Instant::now();
        let at = |milliseconds| sleep_until(start + milliseconds * MILLISECOND);
        limiter.check_n(&KEY, 2).await.unwrap();
        at(8).await;
        limiter.check(&KEY).await.unwrap();
        at(17).await;
        let first = wait_for(&limiter, 2).await;
        at(19).await;
        let second = wait_within(&limiter, 9 * MILLISECOND).await;
        at(21).await;
        // Its charge has left the window long ago.
        old.refund().await;
        at(22).await;
        let third = wait_for(&limiter, 1).await;
        let second = second.await.unwrap().map(drop);
        assert!(second.is_ok(), "{second:?}");
        assert_eq!(start.elapsed(), 28 * MILLISECOND);
        assert!(first.await.unwrap().is_ok());
        assert!(third.await.unwrap().is_ok());
    }
}

fn any_window() -> impl Strategy<Value = Window> {
    prop_oneof![Just(WINDOWS[0]), Just(Window::Buckets(3)), Just(WINDOWS[2])]
}

/// Usage of a key and its queue, in which all waiters wait without a limit.
#[derive(Clone, Debug)]
struct Queue {
    window: Window,
    quota: u32,
    /// Milliseconds per unit.
    step: u32,
    /// Milliseconds before each check, and its cost.
    checks: Vec<(u32, u32)>,
    ahead: Vec<u32>,
}

impl Queue {
    /// Returns the limiter and the waiters, with the time at which one of them passes.
    async fn build(&self) -> (RateLimiter<u8>, Vec<JoinHandle<Result<Permit, Limited>>>) {
        let limit = Limit::new(self.quota, self.quota * self.step * MILLISECOND);
        let limiter = RateLimiter::builder().window(self.window).limit(limit).build();
        for (pause, cost) in &self.checks {
            advance(*pause * MILLISECOND).await;
            let _ = limiter.check_n(&KEY, (*cost).min(self.quota)).await;
        }
        let mut waiters = Vec::new();
        for cost in &self.ahead {
            waiters.push(wait_for(&limiter, (*cost).min(self.quota)).await);
        }
        (limiter, waiters)
    }

    /// Returns the result of a call within a maximum wait, and the time that it took.
    async fn pass(&self, max_wait: Duration) -> (Result<Permit, Limited>, Duration) {
        let (limiter, _waiters) = self.build().await;
        let start = Instant::now();
        let passed = limiter.until_ready_within(&KEY, max_wait).await;
        (passed, start.elapsed())
    }

    /// Returns `true` if the time of a wait is computed exactly: by `Log` only if no cost makes a call wait for units
    /// that pass earlier.
    fn is_exact(&self) -> bool {
        match self.window {
            Window::Log => self.ahead.iter().all(|cost| *cost == 1),
            window => window == Window::Gcra,
        }
    }
}

/// The oracle is the time after which a call without a maximum wait passes behind the same waiters.
#[test]
fn call_that_can_pass_within_its_maximum_wait_is_not_denied() {
    let checks = vec((0..12_u32, 1..6_u32), 0..5);
    let queues = (any_window(), 1..7_u32, 1..5_u32, checks, vec(1..7_u32, 1..5));
    proptest!(sequences::config(300, 20_261), |(queue in queues)| {
        let (window, quota, step, checks, ahead) = queue;
        // Costs of one unit often, for which more is promised.
        let ahead = ahead.into_iter().map(|cost| if step % 2 == 0 { 1 } else { cost }).collect();
        let queue = Queue { window, quota, step: 3 * step, checks, ahead };
        paused(async {
            let (limiter, _waiters) = queue.build().await;
            let start = Instant::now();
            limiter.until_ready(&KEY).await;
            let passes_after = start.elapsed();

            let (passed, waited) = queue.pass(passes_after).await;
            assert!(passed.is_ok(), "denied after {waited:?}, passes after {passes_after:?}");
            assert_eq!(waited, passes_after);

            // By less than a millisecond, timers may be late.
            let by = if queue.is_exact() { NANOSECOND } else { MILLISECOND };
            let Some(too_short) = passes_after.checked_sub(by) else { return };
            let (passed, waited) = queue.pass(too_short).await;
            let retry_after = passed.expect_err("passed before its time").retry_after();
            assert!(waited <= passes_after, "denied after {waited:?}");
            if queue.is_exact() {
                assert_eq!((waited, retry_after), (Duration::ZERO, passes_after));
            } else if waited.is_zero() {
                assert!(retry_after <= passes_after, "{retry_after:?} is after {passes_after:?}");
            }
        });
    });
}

#[derive(Clone, Debug)]
enum Op {
    Check(u32),
    Wait(u32),
    /// Half of the milliseconds of the maximum wait.
    WaitWithin(u32),
    /// A maximum wait that ends when a call leaves the window of a limit.
    WaitUntil(usize, usize),
    Refund(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1..5_u32).prop_map(Op::Check),
        3 => (1..5_u32).prop_map(Op::Wait),
        2 => (0..20_u32).prop_map(Op::WaitWithin),
        4 => any::<(usize, usize)>().prop_map(|(call, limit)| Op::WaitUntil(call, limit)),
        2 => any::<usize>().prop_map(Op::Refund),
    ]
}

/// Waiter that was decided, in the order of the decisions.
#[derive(Clone, Copy, Debug)]
struct Decided {
    /// Its place in the order of joining.
    number: usize,
    passed: bool,
    at: Instant,
    end: Option<Instant>,
}

/// All operations are at even milliseconds, and all maximum waits end at odd ones. So a waiter that is admitted until
/// the end of a denied one has got units that the denied one could have had.
#[test]
fn denied_waiter_was_not_overtaken_until_the_end_of_its_maximum_wait() {
    // Half of the milliseconds of each window.
    let limits = vec((1..7_u32, 1..40_u32), 1..3);
    let ops = vec((0..4_u32, op()), 1..40);
    let sequences = (any_window(), limits, ops);
    proptest!(sequences::config(1_000, 20_262), |(sequence in sequences)| {
        let (window, limits, ops) = sequence;
        paused(async {
            let quota = limits.iter().map(|(quota, _)| *quota).min().expect("at least one");
            let builder = RateLimiter::<u8>::builder().window(window);
            let builder = limits.iter().fold(builder, |builder, (quota, per)| {
                builder.limit(Limit::new(*quota, (2 * per + 1) * MILLISECOND))
            });
            let limiter = builder.build();
            let decided = Arc::new(Mutex::new(Vec::<Decided>::new()));
            let (mut permits, mut calls, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
            let mut now = Instant::now();
            for (pause, op) in ops {
                now += 2 * pause * MILLISECOND;
                sleep_until(now).await;
                let (cost, max_wait) = match op {
                    Op::Check(cost) => {
                        permits.extend(limiter.check_n(&KEY, cost.min(quota)).await);
                        calls.push(now);
                        continue;
                    }
                    Op::Refund(_) if permits.is_empty() => continue,
                    Op::Refund(index) => {
                        permits.remove(index % permits.len()).refund().await;
                        continue;
                    }
                    Op::Wait(cost) => (cost.min(quota), None),
                    Op::WaitWithin(half) => (1, Some((2 * half + 1) * MILLISECOND)),
                    Op::WaitUntil(_, _) if calls.is_empty() => continue,
                    Op::WaitUntil(call, limit) => {
                        let (_, per) = limits[limit % limits.len()];
                        let leaves = calls[call % calls.len()] + (2 * per + 1) * MILLISECOND;
                        if leaves < now {
                            continue;
                        }
                        (1, Some(leaves - now))
                    }
                };
                let (number, end) = (tasks.len(), max_wait.map(|max_wait| now + max_wait));
                let (limiter, decided) = (limiter.clone(), decided.clone());
                tasks.push(joined(async move {
                    let passed = match max_wait {
                        Some(max_wait) => limiter.until_ready_within(&KEY, max_wait).await,
                        None => limiter.until_ready_n(&KEY, cost).await,
                    };
                    let (passed, at) = (passed.is_ok(), Instant::now());
                    decided.lock().unwrap().push(Decided { number, passed, at, end });
                }).await);
            }
            for task in tasks {
                task.await.unwrap();
            }
            let decided = decided.lock().unwrap();
            let passed = || decided.iter().filter(|waiter| waiter.passed);
            assert!(passed().is_sorted_by_key(|waiter| waiter.number), "{decided:?}");
            for denied in decided.iter().filter(|waiter| !waiter.passed) {
                let end = denied.end.expect("without a maximum wait, it is not denied");
                assert!(denied.at <= end + MILLISECOND, "denied too late: {denied:?}");
                // One that is denied earlier could not pass in time.
                let later = |other: &&Decided| other.number > denied.number && other.at <= end;
                let overtaking = passed().filter(|_| denied.at >= end).find(later);
                assert!(overtaking.is_none(), "{denied:?} was overtaken by {overtaking:?}");
            }
        });
    });
}

fn paused(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}
