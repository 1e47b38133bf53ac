use std::time::Duration;

use tokio::time::Instant;

use super::super::script::{Call, Script};
use crate::{Limit, Window, rate_limit::PerLimit};

static LOG: Script =
    Script::new(concat!(include_str!("../limits.lua"), include_str!("../log.lua")));
static BUCKETS: Script =
    Script::new(concat!(include_str!("../limits.lua"), include_str!("../buckets.lua")));
static GCRA: Script =
    Script::new(concat!(include_str!("../limits.lua"), include_str!("../gcra.lua")));

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
}

/// A check, or a look.
pub(super) fn ask<'a>(
    window: Window,
    verb: &str,
    subject: &[u8],
    cost: u32,
    rules: &[Rule],
) -> Call<'a> {
    let call = script(window).call(&[subject]).arg(verb).arg(cost);
    rules.iter().fold(call, |call, rule| call.arg(rule.quota).arg(rule.per).arg(rule.step))
}

pub(super) fn refund<'a>(
    window: Window,
    subject: &[u8],
    born: u64,
    charges: &[Charge],
) -> Call<'a> {
    let call = script(window).call(&[subject]).arg("refund").arg(born);
    charges.iter().fold(call, |call, charge| call.arg(charge.mark).arg(charge.amount))
}

/// What `answer`, received at `now`, says; `None` where no script says such.
pub(super) fn read(
    answer: &[u8],
    window: Window,
    cost: u32,
    rules: &[Rule],
    now: Instant,
) -> Option<Verdict> {
    if answer.len() != 16 + 24 * rules.len() {
        return None;
    }
    let (numbers, _) = answer.as_chunks();
    let number = |at: usize| i64::from_le_bytes(numbers[at]);
    let (limit, born_or_wait) = (number(0), number(1).unsigned_abs());
    let each = rules.iter().zip((2..).step_by(3));
    let left = each.clone().map(|(_, at)| Left {
        remaining: u32::try_from(number(at + 1)).unwrap_or(0),
        more_at: u64::try_from(number(at + 2)).ok().map(|more| later(now, more)),
    });
    let outcome = if limit == 0 {
        let charge = |(rule, at): (&Rule, usize)| Charge {
            mark: number(at).unsigned_abs(),
            amount: rule.amount(cost, window),
        };
        Outcome::Charged { born: born_or_wait, charges: each.map(charge).collect() }
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
