//! Protocol of the limiter's scripts: calls and replies. `prelude.lua` documents the other side.
//!
//! Numbers are doubles in one string, in both directions. All of them are below 2<sup>53</sup>, so they are exact.

use std::{iter, time::Duration};

use tokio::time::Instant;

use super::super::script::{Call, Script};
use crate::rate_limit::{Limit, PerLimit, Standing, Window};

const PRELUDE: &str = include_str!("prelude.lua");

static LOG: Script = Script::new([PRELUDE, include_str!("sliding_log.lua")]);
static BUCKETS: Script = Script::new([PRELUDE, include_str!("buckets.lua")]);
static GCRA: Script = Script::new([PRELUDE, include_str!("gcra.lua")]);

/// A limit as arguments of a script, with times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitArgs {
    quota: u32,
    per: u64,
    /// Length of a bucket, or for GCRA the time in which one unit leaks.
    step: u64,
}

/// Reply of a script to a check.
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) remaining: PerLimit<Remaining>,
}

pub(super) enum Outcome {
    Charged {
        /// Creation time of the state on the server. It identifies the state that was charged: a refund must not apply
        /// to a later state of the same subject.
        created_at: u64,
        charges: PerLimit<Charge>,
    },
    Denied {
        /// Index of the limit with the longest wait.
        limit: usize,
        wait: Duration,
    },
}

/// Charge to one limit, with all that a refund needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// Position in the state: by window, the number of the call, the time of the bucket, or the time at which it has
    /// leaked.
    position: u64,
    /// Amount in units; for GCRA, in microseconds.
    amount: u64,
}

impl Charge {
    /// Returns the charge of `units` of the `cost` units that were charged.
    pub(super) fn part(&self, units: u32, cost: u32) -> Self {
        let amount = self.amount / u64::from(cost.max(1)) * u64::from(units);
        Self { amount, ..*self }
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
        Self { quota, per, step }
    }

    fn amount(&self, cost: u32, window: Window) -> u64 {
        match window {
            Window::Gcra => self.step * u64::from(cost),
            _ => cost.into(),
        }
    }

    /// Returns the remaining units and the time until more remain, or -1 if nothing is in use.
    ///
    /// `in_use` is the time until everything has leaked, and `behind` the lag of the server's clock behind the time of
    /// the state, all in microseconds. Computed here rather than by the script, because the server is single-threaded.
    fn remaining_by_gcra(&self, in_use: i64, behind: i64) -> (i64, i64) {
        let (quota, step) = (i64::from(self.quota), self.step.cast_signed());
        if in_use <= 0 {
            return (quota, -1);
        }
        // Rounded up: a unit that has leaked only in part is still in use.
        let used = (in_use - 1) / step + 1;
        let left = (quota - used).max(0);
        (left, (in_use - step * (quota - left - 1)).saturating_add(behind))
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
}

pub(super) fn call_with_limits<'a>(
    verb: Verb,
    window: Window,
    subject: &[u8],
    cost: u32,
    limits: &[LimitArgs],
) -> Call<'a> {
    let limits = limits.iter().flat_map(|limit| [limit.quota.into(), limit.per, limit.step]);
    call(window, verb as u8, subject, cost.into(), limits)
}

/// Refunds a charge. The reply is the number of charges refunded: one or zero.
pub(super) fn refund<'a>(
    window: Window,
    subject: &[u8],
    created_at: u64,
    charges: &[Charge],
) -> Call<'a> {
    let charges = charges.iter().flat_map(|charge| [charge.position, charge.amount]);
    call(window, b'r', subject, created_at, charges)
}

fn call<'a>(
    window: Window,
    verb: u8,
    subject: &[u8],
    first: u64,
    numbers: impl Iterator<Item = u64>,
) -> Call<'a> {
    // All numbers in one argument: the server allocates an object per argument.
    let mut arg = Vec::with_capacity(1 + 4 * 8);
    arg.push(verb);
    for number in iter::once(first).chain(numbers) {
        // Exact: all numbers are below 2^53, even a century in microseconds.
        arg.extend_from_slice(&(number as f64).to_le_bytes());
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
    let numbers = match (&admitted, answer.as_chunks()) {
        (Some(numbers), _) => &numbers[..],
        (None, (numbers, [])) => numbers,
        _ => return None,
    };
    // GCRA returns no time for a limit that it has never charged; 0 is equivalent, as a time long ago.
    let number = |at: usize| numbers.get(at).map_or(0, |number| f64::from_le_bytes(*number) as i64);
    if numbers.len() < 4 || !is_gcra && numbers.len() != 2 + 3 * limits.len() {
        return None;
    }
    let (limit, created_at_or_wait) = (number(0), number(1).unsigned_abs());
    let each = || limits.iter().enumerate();
    let leaked = |i| number(4 + 3 * i);
    let position = |i| match is_gcra {
        true => leaked(i).saturating_add(number(5 + 3 * i)),
        false => number(2 + 3 * i),
    };
    let remaining = each().map(|(i, limit)| {
        let (remaining, more) = match window {
            Window::Gcra => {
                let behind = number(2).saturating_sub(number(3));
                limit.remaining_by_gcra(leaked(i).saturating_sub(number(2)), behind)
            }
            _ => (number(3 + 3 * i), number(4 + 3 * i)),
        };
        Remaining {
            remaining: u32::try_from(remaining).unwrap_or(0),
            // -1: everything remains.
            more_at: u64::try_from(more).ok().map(|more| after(now, more)),
        }
    });
    let outcome = if limit == 0 {
        let charge = |(i, limit): (usize, &LimitArgs)| Charge {
            position: position(i).unsigned_abs(),
            amount: limit.amount(cost, window),
        };
        Outcome::Charged { created_at: created_at_or_wait, charges: each().map(charge).collect() }
    } else {
        // Lua counts from 1.
        let limit = usize::try_from(limit.checked_sub(1)?).ok().filter(|&at| at < limits.len())?;
        Outcome::Denied { limit, wait: Duration::from_micros(created_at_or_wait) }
    };
    Some(Reply { outcome, remaining: remaining.collect() })
}

/// Converts the state of a subject that has one limit, which is the reply of the fast path of GCRA, to the reply of the
/// general path. Returns `None` for any other reply: these begin with a small number.
fn numbers_of_state(answer: &[u8]) -> Option<[[u8; 8]; 7]> {
    let numbers = answer.strip_prefix(b"\x03G")?;
    let (&[created, now, _, at, back, step], []) = numbers.as_chunks() else { return None };
    // Admitted, at a time at which the server's clock is not behind the state.
    Some([[0; 8], created, now, now, at, back, step])
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
