//! `SyncRateLimiter` does what `RateLimiter` does: random sequences on two limiters that differ in nothing but the
//! handle.

use std::time::Duration;

use fleeting::{Limit, Permit, RateLimiter, Window};
use proptest::{collection::vec, prelude::*};
use tokio::time::advance;

use crate::sequences::config;

#[derive(Clone, Copy, Debug)]
enum Step {
    Check(u8),
    CheckN(u8, u32),
    CheckWith(u8, u32),
    Peek(u8),
    PeekWith(u8, u32),
    Reset(u8),
    Refund,
    Settle(u32),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..3_u8;
    prop_oneof![
        4 => key().prop_map(Step::Check),
        2 => (key(), 0..7_u32).prop_map(|(key, cost)| Step::CheckN(key, cost)),
        1 => (key(), 1..9_u32).prop_map(|(key, quota)| Step::CheckWith(key, quota)),
        1 => key().prop_map(Step::Peek),
        1 => (key(), 1..9_u32).prop_map(|(key, quota)| Step::PeekWith(key, quota)),
        1 => key().prop_map(Step::Reset),
        1 => Just(Step::Refund),
        1 => (0..9_u32).prop_map(Step::Settle),
        2 => (0..2_000_u64).prop_map(Step::Advance),
    ]
}

#[test]
fn both_handles_decide_the_same() {
    let window = prop_oneof![Just(Window::Log), Just(Window::Buckets(5)), Just(Window::Gcra)];
    proptest!(config(300, 50), |(window in window, steps in vec(step(), 1..60))| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(compare(window, steps))?;
    });
}

async fn compare(window: Window, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let build = || -> RateLimiter<u8> {
        let limits =
            RateLimiter::builder().limit(Limit::per_second(3)).limit(Limit::per_minute(12));
        limits.window(window).build()
    };
    let (limiter, other) = (build(), build());
    let sync = other.sync();
    let (mut permits, mut other_permits): (Vec<Permit>, Vec<Permit>) = (Vec::new(), Vec::new());
    for step in &steps {
        let (result, other_result) = match *step {
            Step::Check(key) => {
                let both = (limiter.check(&key).await, sync.check(&key));
                decided(both, &mut permits, &mut other_permits)
            }
            Step::CheckN(key, cost) => {
                let both = (limiter.check_n(&key, cost).await, sync.check_n(&key, cost));
                decided(both, &mut permits, &mut other_permits)
            }
            Step::CheckWith(key, quota) => {
                let limits = [Limit::new(quota, Duration::from_secs(2))];
                let both =
                    (limiter.check_with(&key, &limits).await, sync.check_with(&key, &limits));
                decided(both, &mut permits, &mut other_permits)
            }
            Step::Peek(key) => {
                (format!("{:?}", limiter.peek(&key).await), format!("{:?}", sync.peek(&key)))
            }
            Step::PeekWith(key, quota) => {
                let limits = [Limit::new(quota, Duration::from_secs(2))];
                let state = limiter.peek_with(&key, &limits).await;
                (format!("{state:?}"), format!("{:?}", sync.peek_with(&key, &limits)))
            }
            Step::Reset(key) => {
                (limiter.reset(&key).await.to_string(), sync.reset(&key).to_string())
            }
            Step::Refund => {
                if let (Some(permit), Some(other_permit)) = (permits.pop(), other_permits.pop()) {
                    permit.refund().await;
                    sync.refund(other_permit);
                }
                continue;
            }
            Step::Settle(actual) => {
                if let (Some(permit), Some(other_permit)) = (permits.pop(), other_permits.pop()) {
                    permit.settle(actual).await;
                    sync.settle(other_permit, actual);
                }
                continue;
            }
            Step::Advance(by) => {
                advance(Duration::from_millis(by)).await;
                continue;
            }
        };
        prop_assert_eq!(result, other_result, "{:?} of {:?}", step, steps);
    }
    let (stats, other_stats) = (limiter.stats(), other.stats());
    prop_assert_eq!(format!("{stats:?}"), format!("{other_stats:?}"));
    Ok(())
}

/// Returns what two checks decided as texts, and keeps their permits.
fn decided(
    both: (Result<Permit, fleeting::Limited>, Result<Permit, fleeting::Limited>),
    permits: &mut Vec<Permit>,
    other_permits: &mut Vec<Permit>,
) -> (String, String) {
    let text = |decided: &Result<Permit, fleeting::Limited>| match decided {
        Ok(permit) => format!("{} left", permit.remaining()),
        Err(limited) => format!("{limited} {:?}", limited.retry_after()),
    };
    let texts = (text(&both.0), text(&both.1));
    if let (Ok(permit), Ok(other_permit)) = both {
        permits.push(permit);
        other_permits.push(other_permit);
    }
    texts
}
