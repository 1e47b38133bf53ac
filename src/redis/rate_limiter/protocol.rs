//! Protocol of the limiter's scripts: calls and replies. `prelude.lua` documents the other side.
//!
//! Numbers are doubles in one string, in both directions. Whole numbers below 2<sup>53</sup> are exact.

use std::{iter, time::Duration};

use tokio::time::Instant;

use super::super::script::{Call, Script};
use crate::rate_limit::{Limit, PerLimit, Standing, Window};

const PRELUDE: &str = include_str!("prelude.lua");

static LOG: Script = Script::new([PRELUDE, include_str!("sliding_log.lua")]);
static BUCKETS: Script = Script::new([PRELUDE, include_str!("buckets.lua")]);
static GCRA: Script = Script::new([PRELUDE, include_str!("gcra.lua")]);

/// Length of a step of GCRA from which it is rounded up to whole microseconds. Below, that would be an error of more
/// than 0.1 %.
const MILLISECOND: f64 = 1_000.0;

/// Part of a unit below which usage counts as leaked, if a step has a fraction: its sums have rounding errors.
const TOLERANCE: f64 = 1e-4;

/// A limit as arguments of a script, with times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitArgs {
    quota: u32,
    per: u64,
    /// Length of a bucket, or for GCRA the time in which one unit leaks. Whole microseconds, except for GCRA below a
    /// millisecond.
    step: f64,
}

/// Reply of a script to a check.
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) remaining: PerLimit<Remaining>,
}

pub(super) enum Outcome {
    Charged {
        charges: Charges,
    },
    Denied {
        /// Index of the limit with the longest wait.
        limit: usize,
        wait: Duration,
    },
}

/// Charges of one call, with all that a refund needs.
#[derive(Clone, Debug)]
pub(super) struct Charges {
    /// Creation time of the state on the server. It identifies the state that was charged: a refund must not apply to a
    /// later state of the same subject.
    created_at: f64,
    /// Time of the call; of no meaning with a log.
    at: f64,
    /// For each limit of the call. With GCRA also for each other known limit that was charged.
    each: PerLimit<LimitCharge>,
    /// True if they are a part of a reservation, of which other parts may be refunded, too.
    is_part: bool,
}

/// Charge to one limit.
#[derive(Clone, Copy, Debug)]
struct LimitCharge {
    /// Position among the limits of the call, counted from 1.
    limit: f64,
    /// Step of the limit.
    step: f64,
    /// Number of steps in a window. With GCRA this is the quota.
    steps: f64,
    /// Position in the state: by window, the number of the call, its time, or the level of the bucket.
    position: f64,
    /// Amount in units; for GCRA the time in which it leaks.
    amount: f64,
}

impl Charges {
    /// Charges of a call that cost nothing.
    pub(super) fn none() -> Self {
        Self { created_at: 0.0, at: 0.0, each: PerLimit::Many([].into()), is_part: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Returns the part of the charges by which they exceed those of a call that cost `actual` units.
    pub(super) fn beyond(&self, actual: u32, window: Window) -> Self {
        let beyond = |charge: &LimitCharge| {
            let actual = match window {
                // A bucket that the call has filled holds less than its cost.
                Window::Gcra => charge.step * f64::from(actual),
                _ => actual.into(),
            };
            LimitCharge { amount: (charge.amount - actual).max(0.0), ..*charge }
        };
        Self { each: self.each.iter().map(beyond).collect(), ..*self }
    }

    /// Returns the part of these charges of `all` units that is due to `units` of them.
    pub(super) fn part(&self, units: u32, all: u32, window: Window) -> Self {
        let part = |charge: &LimitCharge| {
            let amount = match window {
                Window::Gcra if charge.amount >= charge.step * f64::from(all) => {
                    charge.step * f64::from(units)
                }
                // A bucket that the call has filled: it is not known which of the units are in it.
                Window::Gcra => 0.0,
                _ => units.into(),
            };
            LimitCharge { amount, ..*charge }
        };
        Self { each: self.each.iter().map(part).collect(), is_part: true, ..*self }
    }
}

/// Remaining quota of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    pub(crate) remaining: u32,
    /// Time from which more units remain; `None` if nothing is in use.
    pub(crate) more_at: Option<Instant>,
}

impl Remaining {
    pub(super) fn of(standing: &Standing) -> Self {
        Self { remaining: standing.remaining, more_at: standing.more_at }
    }
}

impl LimitArgs {
    /// Converts a limit. Times are rounded up, so that no call passes too soon.
    pub(super) fn new(limit: &Limit, window: Window) -> Self {
        let (quota, nanoseconds) = (limit.quota(), limit.per().as_nanos());
        let microseconds = |nanoseconds: u128| {
            // Rounded up, so that a limit never admits more than its quota in its time.
            u64::try_from(nanoseconds.div_ceil(1_000)).expect("a century of microseconds fits")
        };
        let per = microseconds(nanoseconds);
        let (per, step) = match window {
            Window::Log => (per, 0),
            Window::Buckets(n) => {
                let step = per.div_ceil(n as u64);
                // A multiple of the step: otherwise the oldest bucket would leave the window too soon.
                (n as u64 * step, step)
            }
            Window::Gcra => (per, microseconds(nanoseconds.div_ceil(u128::from(quota)))),
        };
        let step = match window {
            Window::Gcra if step < MILLISECOND as u64 => {
                nanoseconds as f64 / 1_000.0 / f64::from(quota)
            }
            _ => step as f64,
        };
        Self { quota, per, step }
    }

    /// Returns the remaining units and the time until more remain, or -1 if nothing is in use.
    ///
    /// `in_use` is the time until everything has leaked. Computed here rather than by the script, because the server is
    /// single-threaded.
    fn remaining_by_gcra(&self, in_use: f64) -> (i64, i64) {
        let quota = i64::from(self.quota);
        let negligible = if self.step < MILLISECOND { TOLERANCE * self.step } else { 0.0 };
        if in_use.is_nan() || in_use <= negligible {
            return (quota, -1);
        }
        // Rounded up: a unit that has leaked only in part is still in use.
        let used = if self.step < MILLISECOND {
            ((in_use / self.step - TOLERANCE).ceil() as i64).max(1)
        } else {
            (in_use as i64 - 1) / self.step as i64 + 1
        };
        let left = quota.saturating_sub(used).max(0);
        (left, (in_use - self.step * (quota - left - 1) as f64).ceil() as i64)
    }
}

/// Operation of a call with a cost and limits.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Verb {
    /// Charges the cost if all limits permit it.
    Check = b'c',
    /// Charges the cost regardless of the limits. Its reply has no meaning.
    Debt = b'd',
    /// Returns the reply of a check without charging. The cost must not be above a quota.
    Peek = b'p',
    /// Checks, and draws units ahead if the call passes.
    Reserve = b'v',
}

pub(super) fn call_with_limits<'a>(
    verb: Verb,
    window: Window,
    subject: &[u8],
    cost: u32,
    limits: &[LimitArgs],
) -> Call<'a> {
    call(window, verb as u8, subject, cost.into(), numbers_of(limits))
}

/// Checks as [`Verb::Check`], and draws up to `ahead` units that may be admitted until `lead` has passed.
pub(super) fn reserve<'a>(
    window: Window,
    subject: &[u8],
    cost: u32,
    limits: &[LimitArgs],
    ahead: u32,
    lead: Duration,
) -> Call<'a> {
    // Rounded up: the units must not leave their window before they are admitted.
    let lead = lead.as_nanos().div_ceil(1_000) as f64;
    let numbers = numbers_of(limits).chain([ahead.into(), lead]);
    call(window, Verb::Reserve as u8, subject, cost.into(), numbers)
}

fn numbers_of(limits: &[LimitArgs]) -> impl Iterator<Item = f64> {
    limits.iter().flat_map(|limit| [limit.quota.into(), limit.per as f64, limit.step])
}

/// Refunds charges. The reply is the number of calls refunded: one or zero.
pub(super) fn refund<'a>(window: Window, subject: &[u8], charges: &Charges) -> Call<'a> {
    let (at, first) = match window {
        Window::Log => (None, 3),
        Window::Buckets(_) => (Some(charges.at), 2),
        Window::Gcra => (Some(charges.at), 0),
    };
    let each = charges.each.iter().flat_map(|charge| {
        let LimitCharge { limit, step, steps, position, amount } = *charge;
        [limit, step, steps, position, amount].into_iter().skip(first)
    });
    let numbers = at.into_iter().chain(each);
    let verb = if charges.is_part { b'b' } else { b'r' };
    call(window, verb, subject, charges.created_at, numbers)
}

fn call<'a>(
    window: Window,
    verb: u8,
    subject: &[u8],
    first: f64,
    numbers: impl Iterator<Item = f64>,
) -> Call<'a> {
    // All numbers in one argument: the server allocates an object per argument.
    let mut arg = Vec::with_capacity(1 + 4 * 8);
    arg.push(verb);
    for number in iter::once(first).chain(numbers) {
        arg.extend_from_slice(&number.to_le_bytes());
    }
    script(window).call(&[subject]).arg(arg)
}

/// Decodes `answer`, received at `now`. Returns `None` if it is not a reply of these scripts.
///
/// Forged numbers may be any: sums of them saturate.
pub(super) fn decode(
    answer: &[u8],
    window: Window,
    cost: u32,
    limits: &[LimitArgs],
    now: Instant,
) -> Option<Reply> {
    let is_gcra = window == Window::Gcra;
    let admitted = if is_gcra { numbers_of_state(answer) } else { None };
    let (numbers, rest) = match &admitted {
        Some(numbers) => (&numbers[..], &[][..]),
        None => answer.as_chunks(),
    };
    let (first, each_limit) = if is_gcra { (3, 2) } else { (2, 3) };
    let at = |i: usize, number: usize| first + each_limit * i + number;
    let more = numbers.get(at(limits.len(), 0)..)?;
    let (called_at, (noted, unread)) = match window {
        Window::Gcra => (numbers.get(2), more.as_chunks()),
        // Only of a call that counts as made later. Other calls are made at the position of their charges.
        Window::Buckets(_) => {
            let at = more.first().or(numbers.get(first));
            (at, (&[][..], more.get(1..).unwrap_or_default()))
        }
        Window::Log => (None, (&[][..], more)),
    };
    if !rest.is_empty() || !unread.is_empty() {
        return None;
    }
    let number = |at: usize| f64::from_le_bytes(numbers[at]);
    let (which, created_at_or_wait) = (number(0), number(1));
    let each = || limits.iter().enumerate();
    let remaining = each().map(|(i, limit)| {
        let (remaining, more) = match window {
            Window::Gcra => {
                let (remaining, more) = limit.remaining_by_gcra(number(at(i, 0)));
                // Of a peek by a limit that is not known, minus the time.
                let level = number(at(i, 1));
                (remaining, if level < 0.0 { (-level) as i64 } else { more })
            }
            _ => (number(at(i, 1)) as i64, number(at(i, 2)) as i64),
        };
        Remaining {
            remaining: u32::try_from(remaining).unwrap_or(0),
            // -1: everything remains.
            more_at: u64::try_from(more).ok().map(|more| after(now, more)),
        }
    });
    let outcome = if which == 0.0 {
        let charge = |(i, limit): (usize, &LimitArgs)| {
            let (position, amount) = match window {
                Window::Gcra => (number(at(i, 1)), limit.step * f64::from(cost)),
                _ => (number(at(i, 0)), cost.into()),
            };
            let (limit_number, step) = ((i + 1) as f64, limit.step);
            let steps = match window {
                Window::Buckets(n) => n as f64,
                _ => limit.quota.into(),
            };
            LimitCharge { limit: limit_number, step, steps, position, amount }
        };
        let noted = noted.iter().map(|noted: &[[u8; 8]; 5]| {
            let [limit, step, steps, position, amount] = noted.map(f64::from_le_bytes);
            LimitCharge { limit, step, steps, position, amount }
        });
        let each = each().map(charge).chain(noted).collect();
        let (created_at, at) =
            (created_at_or_wait, called_at.map_or(0.0, |at| f64::from_le_bytes(*at)));
        Outcome::Charged { charges: Charges { created_at, at, each, is_part: false } }
    } else {
        // Lua counts from 1.
        let limit = (which as usize).checked_sub(1).filter(|&at| at < limits.len())?;
        Outcome::Denied { limit, wait: Duration::from_micros(created_at_or_wait as u64) }
    };
    Some(Reply { outcome, remaining: remaining.collect() })
}

/// Converts the state of a subject that has one limit, which is the reply of the fast path of GCRA, to the reply of the
/// general path. Returns `None` for any other reply: these begin with a small number.
fn numbers_of_state(answer: &[u8]) -> Option<[[u8; 8]; 5]> {
    let (kind, numbers) = answer.split_at_checked(2)?;
    let (created, now, left, level) = match kind {
        b"\x03G" => {
            let (&[created, now, _, at, back, ..], []) = numbers.as_chunks::<8>() else {
                return None;
            };
            let [of_creation, time, at, back] = [created, now, at, back].map(f64::from_le_bytes);
            (created, now, at - time, at + back - of_creation)
        }
        b"\x04G" => {
            let (times, bucket) = numbers.split_at_checked(3 * 8 + 2)?;
            let (&[created, now, ..], _) = times.as_chunks::<8>() else { return None };
            let (&[_, _, left, level, ..], []) = bucket.as_chunks::<8>() else { return None };
            (created, now, f64::from_le_bytes(left), f64::from_le_bytes(level))
        }
        _ => return None,
    };
    Some([[0; 8], created, now, left.to_le_bytes(), level.to_le_bytes()])
}

fn after(now: Instant, microseconds: u64) -> Instant {
    let wait = Duration::from_micros(microseconds);
    // It does not overflow: limits are at most a century.
    now.checked_add(wait).unwrap_or(now)
}

fn script(window: Window) -> &'static Script {
    match window {
        Window::Log => &LOG,
        Window::Buckets(_) => &BUCKETS,
        Window::Gcra => &GCRA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_numbers_do_not_overflow() {
        let limits = [
            Limit::new(10, Duration::from_secs(1)),
            Limit::new(u32::MAX, Duration::from_secs(3_000_000_000)),
        ];
        let numbers = [0.0, 1.0, -1.0, 1e9, f64::MAX, f64::MIN, f64::NAN, f64::INFINITY];
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let limits = limits.each_ref().map(|limit| LimitArgs::new(limit, window));
            // Each pair of numbers in turn, at all places.
            for (one, other) in numbers.iter().flat_map(|one| numbers.map(|other| (*one, other))) {
                for first in [0.0, 1.0, f64::MIN] {
                    let rest = [one, other, one, other, other, one, one, other];
                    let all = [&[first][..], &rest[..7]].concat();
                    for count in 0..=8 {
                        let answer = &all[..count.min(all.len())];
                        let answer: Vec<u8> = answer.iter().flat_map(|n| n.to_le_bytes()).collect();
                        decode(&answer, window, u32::MAX, &limits, Instant::now());
                    }
                }
            }
        }
    }
}
