//! Waiting until a call passes. The waiters for one key in this process form a queue, of which only the head sends
//! checks: those of the others would be denied.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    super::Error,
    check::{Decision, exceeded, limit_index, uncounted},
    limit_set::LimitSet,
    limiter_state::LimiterState,
    protocol::{Outcome, Reply},
};
use crate::rate_limit::{Limit, Limited, Window};

impl LimiterState {
    /// Waits until the call passes. Also returns whether it had to wait.
    pub(super) async fn until_ready(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<(Decision, bool), Error> {
        let mut has_waited = false;
        let decision =
            self.wait_in_queue(subject, cost, limits_override, max_wait, &mut has_waited).await?;
        if decision.outcome.is_ok() && has_waited {
            self.counters.waited.add(1);
        }
        Ok((decision, has_waited))
    }

    async fn wait_in_queue(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        max_wait: Option<Duration>,
        has_waited: &mut bool,
    ) -> Result<Decision, Error> {
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        // From here on it has a place in the queue, which its drop gives up.
        let waiter = self.waiting.join(subject.clone(), cost, limits_override);
        let is_queue_full = max_wait.is_some() && waiter.behind() >= self.wait.max_waiting;
        loop {
            let mut change = pin!(self.current_limits.next_change());
            // Before the limits are read, so that no change in between is missed.
            change.as_mut().enable();
            // Read again after each change: under the new limits, the call may pass immediately or never.
            let current = self.current_limits.get();
            let limits = limits_override.unwrap_or(&current.limits);
            let is_above = limits.iter().any(|limit| limit.quota() < cost);
            if cost == 0 || is_above || limits.is_empty() {
                // Decided at once: waiting would not change the result.
                return self.decide(subject, cost, limits_override).await;
            }
            let now = Instant::now();
            let may_pass_by = |end| {
                let (_, wait) = self.min_wait(limits, waiter.ahead().saturating_add(cost.into()));
                now < end && now.checked_add(wait).is_some_and(|earliest| earliest <= end)
            };
            let turn = if is_queue_full { Err(now) } else { waiter.turn(now) };
            let wake_at = match turn {
                Err(look_at) if !is_queue_full && end.is_none_or(may_pass_by) => look_at,
                Err(_) => {
                    return self
                        .deny_waiter(&subject, cost, limits_override, &current, waiter.ahead())
                        .await;
                }
                Ok(()) => {
                    // During the round trip, this waiter must not be taken for one that is not polled.
                    waiter.asks_at(now.checked_add(self.timeout).unwrap_or(now));
                    // The server may charge them at any time from now on.
                    waiter.units().depart();
                    let decision =
                        self.decide_or_wait(subject.clone(), cost, limits_override, true).await?;
                    let Err(limited) = &decision.outcome else { return Ok(decision) };
                    waiter.units().stay(cost);
                    let ready = limited.ready_at();
                    let next = ready.map(|at| self.next_check(at));
                    let Some(at) = next.filter(|at| end.is_none_or(|end| *at <= end)) else {
                        // The check did not count it, and a cost that can never pass is not counted at all.
                        if ready.is_some() {
                            self.count_denial(&subject, limit_index(limited, limits));
                        }
                        return Ok(decision);
                    };
                    let at = self.wait.jittered(at, &mut rand::make_rng());
                    waiter.asks_at(at);
                    at
                }
            };
            let wake_at = end.map_or(wake_at, |end| wake_at.min(end));
            // Ends early if this waiter may have become the head, or if the limits change.
            let _ = timeout_at(wake_at, waiter.notified_or(change)).await;
            *has_waited = true;
        }
    }

    /// Returns when a waiter checks again that would pass at `ready`: when its denial no longer counts.
    fn next_check(&self, ready: Instant) -> Instant {
        let now = Instant::now();
        now + self.denial_time(ready.saturating_duration_since(now))
    }

    /// Denies a call that waits behind `ahead` units, with the time until it would pass at the earliest.
    ///
    /// The queue is full, the call cannot pass in time, or its time was up before it became the head.
    async fn deny_waiter(
        &self,
        subject: &[u8],
        cost: u32,
        limits_override: Option<&[Limit]>,
        current: &LimitSet,
        ahead: u64,
    ) -> Result<Decision, Error> {
        let limits = limits_override.unwrap_or(&current.limits);
        let peeked = self.peek_cost(subject, cost, limits_override, current).await;
        let (limited, remaining) = match peeked {
            Ok(Reply { outcome, remaining }) => {
                let (mut limit_at, mut wait) =
                    self.min_wait(limits, ahead.saturating_add(cost.into()));
                if let Outcome::Denied { limit, wait: denied_for } = outcome
                    // The longer of both: the server does not count the callers ahead in this process.
                    && denied_for >= wait
                {
                    (limit_at, wait) = (limit, denied_for);
                }
                let several = exceeded(limits, &remaining, cost);
                let ready = Instant::now().checked_add(wait).unwrap_or_else(Instant::now);
                let limited =
                    Limited::new(limits[limit_at].clone(), cost, Some(ready.into()), several)
                        .with_remaining(remaining[limit_at].remaining);
                (limited, remaining)
            }
            Err(error) => {
                let earliest = self.fallback.earliest_denial(error, subject, cost, limits).await?;
                self.counters.by_policy.add(1);
                let Some(earliest) = earliest else { return Ok(uncounted()) };
                earliest
            }
        };
        self.count_denial(subject, limit_index(&limited, limits));
        Ok(Decision { outcome: Err(limited), remaining })
    }

    /// Returns the minimum time until `units` have passed, regardless of current usage, and the index of the limit that
    /// requires it.
    fn min_wait(&self, limits: &[Limit], units: u64) -> (usize, Duration) {
        let min_wait = |limit: &Limit| {
            let quota = u64::from(limit.quota());
            let (times, of) = match self.window {
                // A quota immediately, and then one unit per step.
                Window::Gcra => (units.saturating_sub(quota), limit.per() / limit.quota()),
                _ => (units.saturating_sub(1) / quota, limit.per()),
            };
            let nanoseconds = u64::try_from(of.as_nanos() * u128::from(times));
            Duration::from_nanos(nanoseconds.unwrap_or(u64::MAX))
        };
        let each = limits.iter().map(min_wait).enumerate();
        each.max_by_key(|(_, wait)| *wait).unwrap_or_default()
    }
}
