use std::{iter, time::Duration};

use tokio::time::Instant;

use super::super::script::{Call, Script};
use crate::rate_limit::{Limit, PerLimit, Window};

static LOG: Script =
    Script::new(concat!(include_str!("prelude.lua"), include_str!("sliding_log.lua")));
static BUCKETS: Script =
    Script::new(concat!(include_str!("prelude.lua"), include_str!("buckets.lua")));
static GCRA: Script = Script::new(concat!(include_str!("prelude.lua"), include_str!("gcra.lua")));

/// A limit in the numbers that a script counts with: times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    quota: u32,
    per: u64,
    /// The length of a bucket, or how long a unit takes to leak.
    step: u64,
}

/// What a script says of a check.
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    pub(super) left: PerLimit<Left>,
}

pub(super) enum Outcome {
    Charged {
        /// Tells the state that was charged from others of the same subject.
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
    mark: u64,
    amount: u64,
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) remaining: u32,
    /// From when on more is; `None` where nothing is in use.
    pub(crate) more_at: Option<Instant>,
}

impl Rule {
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
    /// server's clock is `behind` the time that it counts by.
    fn leaked(&self, in_use: i64, behind: i64) -> (i64, i64) {
        let (quota, step) = (i64::from(self.quota), self.step.cast_signed());
        if in_use <= 0 {
            return (quota, -1);
        }
        let left = (quota - (in_use + step - 1) / step).max(0);
        (left, in_use - step * (quota - left - 1) + behind)
    }
}

/// Charges `cost`, where there is room.
pub(super) fn check<'a>(window: Window, subject: &[u8], cost: u32, rules: &[Rule]) -> Call<'a> {
    ask(window, b'c', subject, cost, rules)
}

/// What a check of one unit would find.
pub(super) fn peek<'a>(window: Window, subject: &[u8], rules: &[Rule]) -> Call<'a> {
    ask(window, b'p', subject, 1, rules)
}

fn ask<'a>(window: Window, verb: u8, subject: &[u8], cost: u32, rules: &[Rule]) -> Call<'a> {
    let rules = rules.iter().flat_map(|rule| [rule.quota.into(), rule.per, rule.step]);
    call(window, verb, subject, cost.into(), rules)
}

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
    let mut arg = Vec::with_capacity(1 + 4 * 8);
    arg.push(verb);
    for number in iter::once(first).chain(numbers) {
        // All are below 2^53.
        arg.extend_from_slice(&(number as f64).to_le_bytes());
    }
    script(window).call(&[subject]).arg(arg)
}

/// What `answer`, received at `now`, says; `None` where no script says such.
pub(super) fn read(
    answer: &[u8],
    window: Window,
    cost: u32,
    rules: &[Rule],
    now: Instant,
) -> Option<Verdict> {
    let (numbers, []) = answer.as_chunks() else { return None };
    // A limit that GCRA has never charged has no time, which is as good as one long ago.
    let number = |at: usize| numbers.get(at).map_or(0, |number| f64::from_le_bytes(*number) as i64);
    let is_gcra = window == Window::Gcra;
    if numbers.len() < 4 || !is_gcra && numbers.len() != 2 + 3 * rules.len() {
        return None;
    }
    let (limit, born_or_wait) = (number(0), number(1).unsigned_abs());
    let each = || rules.iter().enumerate();
    let mark = |i| number(if is_gcra { 4 + i } else { 2 + 3 * i });
    let left = each().map(|(i, rule)| {
        let (remaining, more) = match window {
            Window::Gcra => rule.leaked(mark(i) - number(2), number(2) - number(3)),
            _ => (number(3 + 3 * i), number(4 + 3 * i)),
        };
        Left {
            remaining: u32::try_from(remaining).unwrap_or(0),
            more_at: u64::try_from(more).ok().map(|more| later(now, more)),
        }
    });
    let outcome = if limit == 0 {
        let charge = |(i, rule): (usize, &Rule)| Charge {
            mark: mark(i).unsigned_abs(),
            amount: rule.amount(cost, window),
        };
        Outcome::Charged { born: born_or_wait, charges: each().map(charge).collect() }
    } else {
        let limit = usize::try_from(limit - 1).ok().filter(|&at| at < rules.len())?;
        Outcome::Denied { limit, wait: Duration::from_micros(born_or_wait) }
    };
    Some(Verdict { outcome, left: left.collect() })
}

fn later(now: Instant, microseconds: u64) -> Instant {
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
