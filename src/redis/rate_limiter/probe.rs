//! Checks that charge nothing: those of cost 0, and those of requests that are charged by their response.

use std::sync::Arc;

#[cfg(feature = "axum")]
use tokio::time::{Duration, Instant, sleep_until};

#[cfg(feature = "axum")]
use super::check::limit_index;
use super::{
    super::Error,
    check::{Attempt, Decision, deny_above_quota, uncounted},
    limit_set::LimitSet,
    on_error::Fallback,
    permit::{Charged, Permit},
    protocol::{Outcome, Remaining, Reply},
    state::LimiterState,
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
        if let Some(decision) = deny_above_quota(limits, cost) {
            return Ok(decision);
        }
        if limits.is_empty() {
            return Ok(uncounted());
        }
        let attempt = Attempt { subject: &subject, cost, limits, limits_override, is_waiter };
        let lookup = self.deny_cache.as_ref().map(|cache| (cache, cache.look_up(&subject)));
        let found = lookup
            .filter(|_| cost > 0)
            .and_then(|(cache, at)| cache.find(at, &subject, cost, limits_override).0);
        if let Some(denial) = found {
            return Ok(self.deny_locally(&attempt, denial));
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
                return self.decide_without_server(error, &attempt, false).await;
            }
        };
        let Some((limit, wait)) = denied else {
            let permit = self.free_permit(subject, limits_override, &remaining, &current);
            return Ok(Decision { outcome: Ok(permit), remaining });
        };
        let limited = self.deny_by_server(&attempt, limit, wait, &remaining, lookup);
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
            created_at: 0,
            // Nothing is charged before the permit is settled.
            charges: PerLimit::Many([].into()),
            limit_args: limits_override.map(|_| self.limit_args_of(limits_override, current)),
        };
        Permit { charged, remaining: least.unwrap_or(u32::MAX), cost: 0 }
    }
}
