//! What is said with the limiter's scripts: the calls, and what they answer. `prelude.lua` has the other side
//! of it.
//!
//! Numbers are doubles in one string, in both directions: all of them are below 2<sup>53</sup>, so exact.

use std::{iter, time::Duration};

use tokio::time::Instant;

use super::super::script::{Call, Script};
use crate::rate_limit::{Limit, PerLimit, Standing, Window};

const PRELUDE: &str = include_str!("prelude.lua");

static LOG: Script = Script::new([PRELUDE, include_str!("sliding_log.lua")]);
static BUCKETS: Script = Script::new([PRELUDE, include_str!("buckets.lua")]);
static GCRA: Script = Script::new([PRELUDE, include_str!("gcra.lua")]);

/// A limit in the numbers that a script counts with: times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitArgs {
    quota: u32,
    per: u64,
    /// The length of a bucket, or how long a unit takes to leak.
    step: u64,
}

/// What a script says of a check.
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) remaining: PerLimit<Remaining>,
}

pub(super) enum Outcome {
    Charged {
        /// When the state on the server began. It tells the state that was charged from a later one of the same
        /// subject, of which a refund must take nothing.
        born: u64,
        charges: PerLimit<Charge>,
    },
    Denied {
        /// Which limit it takes longest to wait for.
        limit: usize,
        wait: Duration,
    },
}

/// What was charged to one limit: enough to take it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// Where it is in the state: by the window, a call's number, a bucket's time, or the time when it has
    /// leaked.
    mark: u64,
    /// In units; for GCRA, in microseconds.
    amount: u64,
}

impl Charge {
    /// Of so many of the `cost` units that were charged.
    pub(super) fn part(&self, units: u32, cost: u32) -> Self {
        let amount = self.amount / u64::from(cost.max(1)) * u64::from(units);
        Self { amount, ..*self }
    }
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    pub(crate) remaining: u32,
    /// From when on more is; `None` where nothing is in use.
    pub(crate) more_at: Option<Instant>,
}

impl Remaining {
    pub(super) fn of(standing: &Standing) -> Self {
        Self { remaining: standing.remaining, more_at: standing.more_at }
    }
}

impl LimitArgs {
    /// Rounded up, so that nothing passes too soon.
    pub(super) fn new(limit: &Limit, window: Window) -> Self {
        let (quota, nanoseconds) = (limit.quota(), limit.per().as_nanos());
        let microseconds = |nanoseconds: u128| {
            u64::try_from(nanoseconds.div_ceil(1_000)).expect("a century of microseconds fits")
        };
        let per = microseconds(nanoseconds);
        let (per, step) = match window {
            Window::Log => (per, 0),
            Window::Buckets(n) => {
                let step = per.div_ceil(n as u64);
                // Whole buckets: with a part of one the oldest would leave too soon.
                (n as u64 * step, step)
            }
            Window::Gcra => (per, microseconds(nanoseconds.div_ceil(u128::from(quota)))),
        };
        Self { quota, per, step }
    }

    fn amount(&self, cost: u32, window: Window) -> u64 {
        match window {
            Window::Gcra => self.step * u64::from(cost),
            _ => cost.into(),
        }
    }

    /// What is left, and in how long more is, where `in_use` has still to leak; -1 where nothing has. The
    /// server's clock is `behind` the time that it counts by. All in microseconds.
    ///
    /// Done here and not by the script: the server is one thread for all its clients.
    fn remaining_by_gcra(&self, in_use: i64, behind: i64) -> (i64, i64) {
        let (quota, step) = (i64::from(self.quota), self.step.cast_signed());
        if in_use <= 0 {
            return (quota, -1);
        }
        let left = (quota - (in_use + step - 1) / step).max(0);
        (left, in_use - step * (quota - left - 1) + behind)
    }
}

/// What is asked with a cost and limits.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Verb {
    /// Charges the cost, where there is room.
    Check = b'c',
    /// Charges it, whether there is room or not. What it answers tells nothing.
    Debt = b'd',
    /// What a check would find, of a cost that is above no quota.
    Peek = b'p',
}

pub(super) fn ask<'a>(
    verb: Verb,
    window: Window,
    subject: &[u8],
    cost: u32,
    limits: &[LimitArgs],
) -> Call<'a> {
    let limits = limits.iter().flat_map(|limit| [limit.quota.into(), limit.per, limit.step]);
    call(window, verb as u8, subject, cost.into(), limits)
}

/// Takes back what was charged. It answers how many charges it took back: one, or none.
pub(super) fn refund<'a>(
    window: Window,
    subject: &[u8],
    born: u64,
    charges: &[Charge],
) -> Call<'a> {
    let charges = charges.iter().flat_map(|charge| [charge.mark, charge.amount]);
    call(window, b'r', subject, born, charges)
}

fn call<'a>(
    window: Window,
    verb: u8,
    subject: &[u8],
    first: u64,
    numbers: impl Iterator<Item = u64>,
) -> Call<'a> {
    // All in one argument: the server makes an object of each.
    let mut arg = Vec::with_capacity(1 + 4 * 8);
    arg.push(verb);
    for number in iter::once(first).chain(numbers) {
        arg.extend_from_slice(&(number as f64).to_le_bytes());
    }
    script(window).call(&[subject]).arg(arg)
}

/// What `answer`, received at `now`, says; `None` where no script says such.
pub(super) fn decode(
    answer: &[u8],
    window: Window,
    cost: u32,
    limits: &[LimitArgs],
    now: Instant,
) -> Option<Reply> {
    let (numbers, []) = answer.as_chunks() else { return None };
    // A limit that GCRA has never charged has no time, which is as good as one long ago.
    let number = |at: usize| numbers.get(at).map_or(0, |number| f64::from_le_bytes(*number) as i64);
    let is_gcra = window == Window::Gcra;
    if numbers.len() < 4 || !is_gcra && numbers.len() != 2 + 3 * limits.len() {
        return None;
    }
    let (limit, born_or_wait) = (number(0), number(1).unsigned_abs());
    let each = || limits.iter().enumerate();
    let leaked = |i| number(4 + 2 * i);
    let mark = |i| if is_gcra { leaked(i) + number(5 + 2 * i) } else { number(2 + 3 * i) };
    let remaining = each().map(|(i, limit)| {
        let (remaining, more) = match window {
            Window::Gcra => limit.remaining_by_gcra(leaked(i) - number(2), number(2) - number(3)),
            _ => (number(3 + 3 * i), number(4 + 3 * i)),
        };
        Remaining {
            remaining: u32::try_from(remaining).unwrap_or(0),
            more_at: u64::try_from(more).ok().map(|more| after(now, more)),
        }
    });
    let outcome = if limit == 0 {
        let charge = |(i, limit): (usize, &LimitArgs)| Charge {
            mark: mark(i).unsigned_abs(),
            amount: limit.amount(cost, window),
        };
        Outcome::Charged { born: born_or_wait, charges: each().map(charge).collect() }
    } else {
        let limit = usize::try_from(limit - 1).ok().filter(|&at| at < limits.len())?;
        Outcome::Denied { limit, wait: Duration::from_micros(born_or_wait) }
    };
    Some(Reply { outcome, remaining: remaining.collect() })
}

fn after(now: Instant, microseconds: u64) -> Instant {
    let wait = Duration::from_micros(microseconds);
    // Limits are of a century at most.
    now.checked_add(wait).unwrap_or(now)
}

fn script(window: Window) -> &'static Script {
    match window {
        Window::Log => &LOG,
        Window::Buckets(_) => &BUCKETS,
        Window::Gcra => &GCRA,
    }
}
