//! Checks that charge nothing: those of cost 0, and those of requests that are charged by their response.

use std::sync::Arc;

use tokio::time::Instant;
#[cfg(feature = "axum")]
use tokio::time::{Duration, sleep_until};

use super::{
    super::Error,
    check::{Decision, deny_above_quota, exceeded, limit_index, uncounted},
    deny_cache::Denial,
    on_error::Fallback,
    permit::{Charged, Permit},
    protocol::{Outcome, Reply},
    state::LimiterState,
};
use crate::{
    engine::coop,
    rate_limit::{Limit, Limited, PerLimit},
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
        if let Some(decision) = deny_above_quota(limits, cost) {
            return Ok(decision);
        }
        if limits.is_empty() {
            return Ok(uncounted());
        }
        let asked_at = Instant::now();
        let lookup = self.deny_cache.as_ref().map(|cache| (cache, cache.look_up(&subject)));
        let found = lookup
            .filter(|_| cost > 0)
            .and_then(|(cache, at)| cache.find(at, &subject, cost, limits_override, asked_at).0);
        if let Some(denial) = found {
            if !is_waiter {
                self.count_denial(&subject, limit_index(&denial.limited, limits));
                self.counters.denied_locally.add(1);
            }
            return Ok(Decision { outcome: Err(denial.limited), remaining: denial.remaining });
        }
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
                return self.probe_without_server(error, &subject, cost, limits, is_waiter).await;
            }
        };
        let Some((limit, wait)) = denied else {
            let permit = self.free_permit(subject, limits_override, &remaining, &current);
            return Ok(Decision { outcome: Ok(permit), remaining });
        };
        if !is_waiter {
            self.count_denial(&subject, limit);
        }
        let ready = Instant::now().checked_add(wait).map(Into::into);
        let several = exceeded(limits, &remaining, cost);
        let limited = Limited::new(limits[limit].clone(), cost, ready, several);
        if let Some((cache, at)) = lookup
            && let Some(until) = asked_at.checked_add(wait)
        {
            let denial = Denial {
                limited: limited.clone(),
                remaining: remaining.clone(),
                limits_override: limits_override.map(Into::into),
                generation: at.generation,
                until,
            };
            cache.insert(at, &subject, denial);
        }
        Ok(Decision { outcome: Err(limited), remaining })
    }

    /// Probes until the call passes, for at most `max_wait`. Also returns whether it had to wait.
    #[cfg(feature = "axum")]
    pub(super) async fn probe_within(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        max_wait: Duration,
    ) -> Result<(Decision, bool), Error> {
        let end = Instant::now().checked_add(max_wait);
        let mut has_waited = false;
        loop {
            let decision = self.probe(subject.clone(), cost, limits_override, true).await?;
            let Err(limited) = &decision.outcome else { return Ok((decision, has_waited)) };
            let ready = limited.ready_at();
            match ready.filter(|ready| end.is_none_or(|end| *ready <= end)) {
                Some(ready) => sleep_until(ready).await,
                None => {
                    if ready.is_some() {
                        let current = self.current_limits.get();
                        let limits = limits_override.unwrap_or(&current.limits);
                        self.count_denial(&subject, limit_index(limited, limits));
                    }
                    return Ok((decision, has_waited));
                }
            }
            has_waited = true;
        }
    }

    async fn probe_without_server(
        &self,
        error: Error,
        subject: &[u8],
        cost: u32,
        limits: &[Limit],
        is_waiter: bool,
    ) -> Result<Decision, Error> {
        if !Fallback::is_for(&error) {
            return Err(error);
        }
        self.counters.by_policy.add(1);
        let Some((outcome, remaining)) = self.fallback.probe(error, subject, cost, limits).await?
        else {
            return Ok(uncounted());
        };
        if let Err(limited) = &outcome
            && !is_waiter
        {
            self.count_denial(subject, limit_index(limited, limits));
        }
        let outcome = outcome.map(|permit| {
            let remaining = permit.remaining();
            Permit { charged: Charged::Local(permit), remaining, cost: 0 }
        });
        Ok(Decision { outcome, remaining })
    }

    /// Returns a permit that charged nothing.
    fn free_permit(
        self: &Arc<Self>,
        subject: Vec<u8>,
        limits_override: Option<&[Limit]>,
        remaining: &[super::protocol::Remaining],
        current: &super::limit_set::LimitSet,
    ) -> Permit {
        let least = remaining.iter().map(|quota| quota.remaining).min();
        let charged = Charged::OnServer {
            limiter: Arc::clone(self),
            subject,
            created_at: 0,
            // Nothing is charged before the permit is settled.
            charges: PerLimit::Many([].into()),
            limit_args: limits_override.map(|_| self.limit_args_of(limits_override, current)),
        };
        Permit { charged, remaining: least.unwrap_or(u32::MAX), cost: 0 }
    }
}
