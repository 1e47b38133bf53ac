//! Table of crossings: each pair of settings of a limiter, with each window, keeps the promise that one key has one
//! quota. A pair that makes no sense has a reason.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

use std::time::Duration;

use fleeting::{Limit, Window};

use crate::oracle::{Backend, Setup};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Plans,
    SetLimits,
    Refund,
    Settle,
    Wait,
    MaxKeys,
}

pub(crate) const SETTINGS: [Setting; 6] = [
    Setting::Plans,
    Setting::SetLimits,
    Setting::Refund,
    Setting::Settle,
    Setting::Wait,
    Setting::MaxKeys,
];

pub(crate) const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

const QUOTA: u32 = 10;
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// Plays each cell on a new limiter, and fails with all cells that broke their promise. Prints the cells that make no
/// sense, with the reasons.
pub(crate) async fn play_all<B: Backend>(
    reason_against: impl Fn(Setting) -> Option<&'static str>,
    new: impl AsyncFn(&Setup) -> B,
) {
    let mut broken = Vec::new();
    let mut cells = 0;
    for (first, one) in SETTINGS.into_iter().enumerate() {
        for other in SETTINGS.into_iter().skip(first) {
            if let Some(reason) = reason_against(one).or(reason_against(other)) {
                println!("{one:?} with {other:?}: no cell, because {reason}");
                continue;
            }
            for window in WINDOWS {
                let max_keys = (one == Setting::MaxKeys || other == Setting::MaxKeys).then_some(1);
                let limit = Limit::new(QUOTA, Duration::from_micros(HOUR));
                let setup = Setup { window, plans: vec![vec![limit]], max_keys, sweeps: false };
                let cell = Cell { backend: new(&setup).await, window, settings: [one, other] };
                cells += 1;
                if let Err(broken_promise) = cell.play().await {
                    broken.push(format!("{one:?} with {other:?}, {window:?}: {broken_promise}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{} of {cells} cells:\n{}", broken.len(), broken.join("\n"));
}

struct Cell<B> {
    backend: B,
    window: Window,
    settings: [Setting; 2],
}

fn ensure(kept: bool, promise: impl FnOnce() -> String) -> Result<(), String> {
    if kept { Ok(()) } else { Err(promise()) }
}

impl<B: Backend> Cell<B> {
    fn has(&self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// The promise of all cells: ten units per hour pass with all settings, and are free again in time.
    async fn play(&self) -> Result<(), String> {
        let Self { backend, .. } = self;
        if self.has(Setting::MaxKeys) {
            backend.check("first", 1, None).await.map_err(|denial| format!("first: {denial:?}"))?;
        }
        let check = async |cost: u32| {
            let checked = backend.check("ada", cost, None).await;
            checked.map_err(|denial| format!("{cost} of the quota are denied: {denial:?}"))
        };
        check(4).await?;
        if self.has(Setting::Settle) {
            // A key beyond the bound keeps its own record of what is taken back.
            let less = if self.has(Setting::MaxKeys) { 2 } else { 3 };
            backend.settle(check(less).await?, 2).await;
            backend.settle(check(1).await?, 2).await;
        } else {
            check(4).await?;
        }
        let refunded = check(2).await?;
        backend.pass(2 * SECOND).await;

        // Calls by another limit, which has enough quota.
        let other = [Limit::per_second(1_000)];
        let mut others = 0;
        if self.has(Setting::Plans) {
            let checked = backend.check("ada", 1, Some(&other)).await;
            ensure(checked.is_ok(), || "the other plan denies".to_owned())?;
            others += 1;
        }
        if self.has(Setting::SetLimits) {
            backend.set_limits(Some(&other)).await;
            check(1).await?;
            backend.set_limits(None).await;
            others += 1;
        }
        backend.pass(2 * SECOND).await;
        let checked = backend.check("ada", 1, None).await;
        ensure(checked.is_err(), || "one unit above the quota passes".to_owned())?;

        if self.has(Setting::Refund) {
            backend.refund(refunded).await;
            let limit = Limit::new(QUOTA, Duration::from_micros(HOUR));
            let left = backend.peek("ada", &[limit]).await.remaining();
            // GCRA and keys beyond the bound may give back less after other calls.
            let is_exact = others == 0 || self.window != Window::Gcra;
            let least = if is_exact && !self.has(Setting::MaxKeys) { 2 - others.min(2) } else { 0 };
            ensure((least..=2).contains(&left), || format!("{left} remain after a refund of 2"))?;
            if left > 0 && !self.has(Setting::MaxKeys) {
                check(left).await?;
            }
        }

        let longest = match self.window {
            Window::Buckets(n) => HOUR + HOUR / n as u64,
            _ => HOUR,
        };
        if self.has(Setting::Wait) {
            let begin = backend.now();
            let most = Duration::from_micros(longest + SECOND);
            let waited = backend.until_ready_within("ada", most).await;
            waited.map_err(|denial| format!("the waiter is denied: {denial:?}"))?;
            let waited = backend.now() - begin;
            return ensure(waited > SECOND, || format!("the waiter passes after {waited} us"));
        }
        let Err(denial) = backend.check("ada", 1, None).await else {
            return ensure(self.has(Setting::Refund), || {
                "a unit above the quota passes".to_owned()
            });
        };
        ensure(denial.least <= longest + B::SLACK, || format!("denied for too long: {denial:?}"))?;
        backend.pass(denial.most).await;
        let checked = backend.check("ada", 1, None).await;
        ensure(checked.is_ok(), || "denied at retry_after".to_owned())
    }
}
