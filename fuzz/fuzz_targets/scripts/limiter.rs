//! Calls of a `RateLimiter`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use arbitrary::Arbitrary;
use fleeting::{
    Limit, Window,
    redis::{Client, Error, OnError, Permit, RateLimiter},
};
use tokio::time::timeout;

use crate::{
    LONG, MOST_CALLS,
    outcome::{built, outcome},
    sequence::Sequence,
    values::{Key, Number, Span, Text},
};

const MOST_LIMITS: usize = 4;

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Settings {
    window: AnyWindow,
    limits: Vec<AnyLimit>,
    has_deny_cache: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum AnyWindow {
    Log,
    Buckets(u16),
    Gcra,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct AnyLimit {
    quota: Number,
    per: Span,
    name: Option<Text>,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Call {
    Check(Key, Number, AfterCheck),
    CheckWith(Key, Number, Vec<AnyLimit>),
    Peek(Key),
    PeekWith(Key, Vec<AnyLimit>),
    Reset(Key),
    UntilReady(Key, Number),
    UntilReadyWithin(Key, Span),
    SetLimits(Vec<AnyLimit>),
    ClearLimits,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum AfterCheck {
    Keep,
    Refund,
    Settle(Number),
}

/// The known charges of a limiter.
struct Charges {
    window: Window,
    limits: Vec<Limit>,
    /// Sum of the charges of each key since the start; `None` if unknown.
    charged: BTreeMap<String, Option<u64>>,
    started: Instant,
}

impl Charges {
    fn new(window: Window, limits: Vec<Limit>) -> Self {
        Self { window, limits, charged: BTreeMap::new(), started: Instant::now() }
    }

    /// Other limits apply, which count the charges of earlier calls in ways that are not modelled.
    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
        self.charged.values_mut().for_each(|charged| *charged = None);
    }

    fn of(&self, key: &str) -> Option<u64> {
        self.charged.get(key).copied().unwrap_or(Some(0))
    }

    fn add(&mut self, key: &str, cost: u32) {
        let charged = self.of(key).map(|charged| charged + u64::from(cost));
        self.charged.insert(key.to_owned(), charged);
    }

    /// Returns whether the limits certainly admit a call.
    fn must_admit(&self, key: &str, cost: u32) -> bool {
        let Some(charged) = self.of(key) else { return false };
        let fits = |limit: &Limit| charged + u64::from(cost) <= u64::from(limit.quota());
        self.window != Window::Gcra && self.limits.iter().all(fits)
    }

    /// Checks an admitted call, before its charge is added.
    fn check_admitted(&self, call: &Call, key: &str, cost: u32, permit: &Permit) {
        for limit in &self.limits {
            let quota = limit.quota();
            assert!(permit.remaining() <= quota, "{call:?}: {permit:?} of {limit:?}");
            if cost == 0 {
                continue;
            }
            assert!(cost <= quota, "{call:?}: {cost} of {limit:?}");
            let Some(charged) = self.of(key).filter(|_| limit.per() >= LONG) else { continue };
            let refilled = match self.window {
                Window::Gcra => refilled(limit, self.started.elapsed()),
                _ => 0,
            };
            let total = charged + u64::from(cost);
            assert!(total <= u64::from(quota) + refilled, "{call:?}: {total} of {limit:?}");
        }
    }
}

/// Returns the maximum of the charges that leave the window of GCRA, with the rounding of each call.
fn refilled(limit: &Limit, elapsed: Duration) -> u64 {
    let share = elapsed.as_secs_f64() / limit.per().as_secs_f64();
    (f64::from(limit.quota()) * share).ceil() as u64 + MOST_CALLS as u64
}

pub(crate) async fn run(
    client: &Client,
    name: &str,
    settings: Settings,
    Sequence(calls): Sequence<Call>,
) -> Result<(), Error> {
    let window = match settings.window {
        AnyWindow::Log => Window::Log,
        AnyWindow::Buckets(n) => Window::Buckets(usize::from(n % 10_000) + 1),
        AnyWindow::Gcra => Window::Gcra,
    };
    let mut limits = valid(&settings.limits);
    if limits.is_empty() {
        limits.push(Limit::per_minute(10));
    }
    let mut builder = RateLimiter::<String>::builder(client, name)
        .window(window)
        .on_error(OnError::Deny)
        .timeout(Duration::from_secs(10));
    if !settings.has_deny_cache {
        builder = builder.deny_cache(0);
    }
    for limit in &limits {
        builder = builder.limit(limit.clone());
    }
    let Some(limiter) = built(name, builder.build()) else { return Ok(()) };
    let mut charges = Charges::new(window, limits.clone());
    for call in calls.into_iter().take(MOST_CALLS) {
        match call.clone() {
            Call::SetLimits(limits) => {
                let limits = valid(&limits);
                if !limits.is_empty() {
                    let set = limiter.set_limits(limits.clone()).await;
                    let expected = match outcome(&call, set)? {
                        Some(()) => limits,
                        None => charges.limits.clone(),
                    };
                    assert_eq!(*limiter.limits(), expected[..], "{call:?}");
                    charges.set_limits(expected);
                }
            }
            Call::ClearLimits => {
                outcome(&call, limiter.clear_limits().await)?;
                assert_eq!(*limiter.limits(), limits[..], "{call:?}");
                charges.set_limits(limits.clone());
            }
            _ => run_one(&limiter, call, &mut charges).await?,
        }
    }
    Ok(())
}

async fn run_one(
    limiter: &RateLimiter<String>,
    call: Call,
    charges: &mut Charges,
) -> Result<(), Error> {
    match call.clone() {
        Call::Check(key, cost, after) => {
            let (key, cost) = (key.0, cost.number());
            let checked = limiter.check_n(&key, cost).await;
            let Some(permit) = admitted(&call, checked, |call| {
                assert!(cost > 0 && !charges.must_admit(&key, cost), "{call:?}: denied");
            })?
            else {
                return Ok(());
            };
            charges.check_admitted(&call, &key, cost, &permit);
            match after {
                AfterCheck::Keep => charges.add(&key, cost),
                AfterCheck::Refund => _ = outcome(&call, permit.refund().await)?,
                AfterCheck::Settle(actual) => {
                    charges.add(&key, actual.number());
                    outcome(&call, permit.settle(actual.number()).await)?;
                }
            }
        }
        Call::CheckWith(key, cost, limits) => {
            let (key, cost, limits) = (key.0, cost.number(), valid(&limits));
            if limits.is_empty() {
                return Ok(());
            }
            let checked = limiter.check_n_with(&key, cost, &limits).await;
            let permit = admitted(&call, checked, |call| assert!(cost > 0, "{call:?}: denied"))?;
            if let Some(permit) = permit {
                let least = limits.iter().map(Limit::quota).min().expect("there is a limit");
                assert!(cost <= least && permit.remaining() <= least, "{call:?}: {permit:?}");
            }
            charges.charged.insert(key, None);
        }
        Call::Peek(key) => {
            if let Some(state) = outcome(&call, limiter.peek(&key.0).await)? {
                assert_eq!(state.standings().len(), charges.limits.len(), "{call:?}");
            }
        }
        Call::PeekWith(key, limits) => {
            let limits = valid(&limits);
            if limits.is_empty() {
                return Ok(());
            }
            if let Some(state) = outcome(&call, limiter.peek_with(&key.0, &limits).await)? {
                assert_eq!(state.standings().len(), limits.len(), "{call:?}");
            }
        }
        Call::Reset(key) => {
            let key = key.0;
            if outcome(&call, limiter.reset(&key).await)?.is_some() {
                charges.charged.insert(key, Some(0));
            }
        }
        Call::UntilReady(key, cost) => {
            let (key, cost) = (key.0, cost.number());
            wait(&call, limiter.until_ready_n(&key, cost)).await?;
            charges.charged.insert(key, None);
        }
        Call::UntilReadyWithin(key, max_wait) => {
            let key = key.0;
            wait(&call, limiter.until_ready_within(&key, max_wait.duration())).await?;
            charges.charged.insert(key, None);
        }
        Call::SetLimits(_) | Call::ClearLimits => unreachable!("they change the limiter"),
    }
    Ok(())
}

/// Waits for a permit, for a short time.
async fn wait(
    call: &Call,
    permit: impl Future<Output = Result<Permit, Error>>,
) -> Result<(), Error> {
    if let Ok(permit) = timeout(Duration::from_millis(2), permit).await {
        admitted(call, permit, |_| ())?;
    }
    Ok(())
}

/// Returns the permit of an admitted call. Calls `denied` if it was rate limited.
fn admitted(
    call: &Call,
    checked: Result<Permit, Error>,
    denied: impl FnOnce(&Call),
) -> Result<Option<Permit>, Error> {
    match checked {
        Err(Error::Limited(_)) => {
            denied(call);
            Ok(None)
        }
        checked => outcome(call, checked),
    }
}

/// Returns the valid ones of some limits.
fn valid(limits: &[AnyLimit]) -> Vec<Limit> {
    let limits = limits.iter().filter_map(|AnyLimit { quota, per, name }| {
        let limit = Limit::try_new(quota.number(), per.duration()).ok()?;
        Some(match name {
            Some(name) => limit.named(name.text()),
            None => limit,
        })
    });
    limits.take(MOST_LIMITS).collect()
}
