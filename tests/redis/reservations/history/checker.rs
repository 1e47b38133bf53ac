//! Checker of the admitted calls of several processes against their limits.
//!
//! A call was admitted at an unknown time between its two recorded times. A window counts it only if both are in the
//! window, so a violation that the checker finds is certain.

use std::collections::BTreeSet;

use fleeting::Window;

/// Part of a window by which it is shortened, as the clocks of the server and of the processes do not run equally fast.
const TOLERANCE: u64 = 1_000;

/// An admitted call; times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) units: u64,
    pub(super) limit: Rate,
}

/// Limit of a call, with the window in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rate {
    pub(super) quota: u64,
    pub(super) per: u64,
}

/// Calls of one key.
#[derive(Default)]
pub(super) struct KeyHistory {
    pub(super) calls: Vec<Call>,
    /// Times between which units of before a reset and units of after it may have been admitted.
    pub(super) resets: Vec<(u64, u64)>,
}

impl KeyHistory {
    /// Checks all windows of all limits. Returns the largest part of a limit that was admitted in one of them, above 1
    /// after a reset, or a description of the violation. `drift` is the time by which the clock of the server may have
    /// been changed.
    pub(super) fn check(&self, window: Window, drift: u64) -> Result<f64, String> {
        let limits: BTreeSet<Rate> = self.calls.iter().map(|call| call.limit).collect();
        let mut fullest = 0.0_f64;
        for limit in &limits {
            let is_own = |call: &Call| call.limit == *limit;
            fullest = fullest.max(self.check_calls(is_own, window, drift)?);
        }
        // Calls by another quota of the same time count, too. The call that was charged last was within its own.
        if window != Window::Gcra {
            for per in limits.iter().map(|limit| limit.per).collect::<BTreeSet<_>>() {
                self.check_calls(|call| call.limit.per == per, window, drift)?;
            }
        }
        Ok(fullest)
    }

    /// Checks all windows of the calls of one `per`. The largest quota of the calls in a window applies.
    fn check_calls(
        &self,
        counts: impl Fn(&Call) -> bool,
        window: Window,
        drift: u64,
    ) -> Result<f64, String> {
        let mut calls: Vec<Call> = self.calls.iter().copied().filter(counts).collect();
        calls.sort_by_key(|call| call.end);
        let mut fullest = 0.0_f64;
        for first in &calls {
            let (mut units, mut quota, mut step) = (0, 0, 0);
            let from = calls.partition_point(|call| call.end < first.begin);
            for call in &calls[from..] {
                if call.begin < first.begin {
                    continue;
                }
                let (time, per) = (call.end - first.begin, call.limit.per);
                if window != Window::Gcra && time + per / TOLERANCE + drift >= per {
                    break;
                }
                units += call.units;
                if call.limit.quota > quota {
                    quota = call.limit.quota;
                    // Whole microseconds.
                    step = (per / 1_000).div_ceil(quota) * 1_000;
                }
                let most = match window {
                    Window::Gcra => quota + (time + time / TOLERANCE + drift) / step,
                    _ => quota,
                };
                // After a reset, the key has its whole quota again.
                if units > most && units > most * (1 + self.resets_within(first.begin, call.end)) {
                    return Err(format!(
                        "{units} units within {} µs, at most {most} allowed: {first:?} to {call:?}",
                        time / 1_000
                    ));
                }
                fullest = fullest.max(units as f64 / most as f64);
            }
        }
        Ok(fullest)
    }

    /// Returns the number of resets of which both sides may have calls between two times.
    fn resets_within(&self, begin: u64, end: u64) -> u64 {
        let resets = self.resets.iter();
        resets.filter(|(before, after)| *before <= end && *after >= begin).count() as u64
    }
}

const MILLISECOND: u64 = 1_000_000;

/// Returns the history of calls of one unit by a limit of 3 per 100 ms, from their times in milliseconds.
fn history(times: &[(u64, u64)]) -> KeyHistory {
    let limit = Rate { quota: 3, per: 100 * MILLISECOND };
    let calls = times.iter().map(|(begin, end)| Call {
        begin: begin * MILLISECOND,
        end: end * MILLISECOND,
        units: 1,
        limit,
    });
    KeyHistory { calls: calls.collect(), resets: Vec::new() }
}

#[test]
fn checker_accepts_a_history_that_may_be_within_the_quota() {
    // The last call may have been admitted after the first has left the window.
    let calls = history(&[(0, 1), (10, 12), (20, 21), (95, 101)]);
    for window in [Window::Log, Window::Buckets(10)] {
        assert_eq!(calls.check(window, 0), Ok(1.0));
    }
    // One unit leaks in 33.4 ms.
    let calls = history(&[(0, 1), (1, 2), (2, 3), (30, 34), (60, 67), (95, 101)]);
    assert_eq!(calls.check(Window::Gcra, 0), Ok(1.0));
}

#[test]
fn checker_finds_calls_above_the_quota() {
    let calls = history(&[(0, 1), (10, 12), (20, 21), (95, 99)]);
    for window in [Window::Log, Window::Buckets(10)] {
        let violation = calls.check(window, 0).unwrap_err();
        assert!(violation.starts_with("4 units within 99000 µs, at most 3 allowed"), "{violation}");
        // The server's clock may have been 2 ms ahead.
        assert_eq!(calls.check(window, 2 * MILLISECOND), Ok(1.0));
    }
    let mut calls = history(&[(0, 1), (1, 2), (2, 3), (30, 33), (60, 63)]);
    assert!(calls.check(Window::Gcra, 0).unwrap_err().starts_with("4 units within 33000 µs"));
    // A reset gives the key another three units, but not four.
    calls.resets.push((5 * MILLISECOND, 25 * MILLISECOND));
    assert_eq!(calls.check(Window::Gcra, 0), Ok(4.0 / 3.0));
    let mut calls = history(&[(0, 1), (1, 2), (2, 3), (20, 21), (21, 22), (22, 23)]);
    calls.resets.push((5 * MILLISECOND, 25 * MILLISECOND));
    assert_eq!(calls.check(Window::Log, 0), Ok(2.0));
    calls.calls.push(Call { begin: 30 * MILLISECOND, end: 31 * MILLISECOND, ..calls.calls[0] });
    assert!(calls.check(Window::Log, 0).unwrap_err().starts_with("7 units within 31000 µs"));
}

#[test]
fn checker_counts_calls_by_other_quotas_of_the_same_time() {
    let mut calls = history(&[(0, 1), (10, 11), (20, 21)]);
    let other = Rate { quota: 2, per: 100 * MILLISECOND };
    calls.calls.push(Call {
        begin: 30 * MILLISECOND,
        end: 31 * MILLISECOND,
        units: 1,
        limit: other,
    });
    assert!(calls.check(Window::Log, 0).unwrap_err().starts_with("4 units within 31000 µs"));
    // Each bucket of GCRA is within its own limit.
    assert_eq!(calls.check(Window::Gcra, 0), Ok(1.0));
}
