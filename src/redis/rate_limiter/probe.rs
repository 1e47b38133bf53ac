//! Checks that charge nothing: those of cost 0, and those of requests that are charged by their response.

#[cfg(feature = "axum")]
use std::pin::pin;
use std::sync::Arc;

#[cfg(feature = "axum")]
use tokio::time::{Duration, Instant, timeout_at};

#[cfg(feature = "axum")]
use super::check::limit_index;
use super::{
    super::Error,
    check::{Attempt, Decision},
    limit_set::LimitSet,
    limiter_state::LimiterState,
    on_error::Fallback,
    permit::{Charged, Permit},
    protocol::{Charges, Outcome, Remaining, Reply},
};
use crate::{
    engine::coop,
    rate_limit::{Limit, PerLimit},
};

impl LimiterState {
    /// Decides as a check of `cost` units, and charges nothing: the permit has cost 0. If `is_waiter`, a denial is not
    /// counted.
    pub(super) async fn probe(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        is_waiter: bool,
    ) -> Result<Decision, Error> {
        coop::proceed().await;
        let current = self.current_limits.get();
        let limits = limits_override.unwrap_or(&current.limits);
        let attempt = Attempt { subject: &subject, cost, limits, limits_override, is_waiter };
        let lookup = match self.decide_locally(&attempt) {
            Ok(decision) => return Ok(decision),
            Err(lookup) => lookup,
        };
        // A cost of 0 always passes; the call is only for the remaining quota.
        let peeked = self.peek_cost(&subject, cost.max(1), limits_override, &current).await;
        let (remaining, denied) = match peeked {
            Ok(Reply { outcome: Outcome::Denied { limit, wait }, remaining }) if cost > 0 => {
                (remaining, Some((limit, wait)))
            }
            Ok(Reply { remaining, .. }) => (remaining, None),
            Err(error) if cost == 0 && Fallback::is_for(&error) => {
                (PerLimit::Many([].into()), None)
            }
            Err(error) => {
                return self.decide_without_server(error, &attempt, false).await;
            }
        };
        let Some((limit, wait)) = denied else {
            let permit = self.free_permit(subject, limits_override, &remaining, &current);
            return Ok(Decision { outcome: Ok(permit), remaining });
        };
        let limited = self.deny_by_server(&attempt, limit, wait, &remaining, &lookup);
        Ok(Decision { outcome: Err(limited), remaining })
    }

    /// Probes until the call passes, for at most `max_wait`. Also returns whether it had to wait.
    ///
    /// There is no order among the waiters: a passing probe takes nothing from another. Their queue counts them, and
    /// wakes its head if usage is released; if the head passes, it leaves the queue, which wakes the next one.
    #[cfg(feature = "axum")]
    pub(super) async fn probe_within(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        max_wait: Duration,
    ) -> Result<(Decision, bool), Error> {
        let end = Instant::now().checked_add(max_wait);
        let (mut waiter, mut has_waited) = (None, false);
        loop {
            let mut change = pin!(self.current_limits.next_change());
            // Before the limits and the releases are read, so that no change in between is missed.
            change.as_mut().enable();
            let (current, releases) = (self.current_limits.get(), self.probing.releases());
            let decision = self.probe(subject.clone(), cost, limits_override, true).await?;
            let Err(limited) = &decision.outcome else { return Ok((decision, has_waited)) };
            // As for checks: a cost that can never pass is not counted.
            let Some(ready) = limited.ready_at() else { return Ok((decision, has_waited)) };
            let is_in_time = end.is_none_or(|end| ready <= end);
            if is_in_time && waiter.is_none() {
                let joined = waiter.insert(self.probing.join(subject.clone(), cost, None));
                if joined.behind() < self.wait.max_waiting && self.probing.releases() != releases {
                    continue;
                }
            }
            let waiter = waiter.as_ref().filter(|waiter| waiter.behind() < self.wait.max_waiting);
            let Some(waiter) = waiter.filter(|_| is_in_time) else {
                let limits = limits_override.unwrap_or(&current.limits);
                self.count_denial(&subject, limit_index(limited, limits));
                return Ok((decision, has_waited));
            };
            let wake_at = self.wait.jittered(ready, &mut rand::make_rng());
            let wake_at = end.map_or(wake_at, |end| wake_at.min(end));
            loop {
                let _ = timeout_at(wake_at, waiter.notified_or(change.as_mut())).await;
                has_waited = true;
                // Otherwise the waiter ahead has passed. This one sleeps until its own time, or all would pass at once.
                if !Arc::ptr_eq(&self.current_limits.get(), &current)
                    || self.probing.releases() != releases
                    || Instant::now() >= wake_at
                {
                    break;
                }
            }
        }
    }

    /// Returns a permit that charged nothing.
    fn free_permit(
        self: &Arc<Self>,
        subject: Vec<u8>,
        limits_override: Option<&[Limit]>,
        remaining: &[Remaining],
        current: &LimitSet,
    ) -> Permit {
        let least = remaining.iter().map(|quota| quota.remaining).min();
        let charged = Charged::OnServer {
            limiter: Arc::clone(self),
            subject,
            // Nothing is charged before the permit is settled.
            charges: Charges::none(),
            limit_args: limits_override.map(|_| self.limit_args_of(limits_override, current)),
        };
        Permit { charged, remaining: least.unwrap_or(u32::MAX), cost: 0 }
    }
}
