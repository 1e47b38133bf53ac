//! Waiting until a call passes. Who waits for one key in this process stands in a line, of which only the first
//! asks the server: all others would ask in vain.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    super::Error,
    check::{Decision, exceeded, place_of, uncounted},
    limit_set::Plan,
    protocol::{Outcome, Reply},
    state::LimiterState,
};
use crate::rate_limit::{Limit, Limited, Window};

impl LimiterState {
    /// Tells whether it had to wait, too.
    pub(super) async fn until_ready(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<(Decision, bool), Error> {
        let mut has_waited = false;
        let decision = self.wait_in_line(subject, cost, plan, max_wait, &mut has_waited).await?;
        if decision.outcome.is_ok() && has_waited {
            self.counters.waited.add(1);
        }
        Ok((decision, has_waited))
    }

    async fn wait_in_line(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
        max_wait: Option<Duration>,
        has_waited: &mut bool,
    ) -> Result<Decision, Error> {
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        let waiter = self.waiting.join(subject.clone(), cost);
        let is_one_too_many = max_wait.is_some() && waiter.behind() >= self.wait.most;
        loop {
            let mut change = pin!(self.plan.change());
            change.as_mut().enable();
            // Again after each change: what may pass now, or never will, waits for nobody.
            let own = self.plan.present();
            let limits = plan.unwrap_or(&own.limits);
            let is_above = limits.iter().any(|limit| limit.quota() < cost);
            if cost == 0 || is_above || limits.is_empty() {
                return self.decide(subject, cost, plan).await;
            }
            let now = Instant::now();
            let may_pass_by = |end| {
                let (_, wait) = self.least_wait(limits, waiter.ahead().saturating_add(cost.into()));
                now < end && now.checked_add(wait).is_some_and(|soonest| soonest <= end)
            };
            let turn = if is_one_too_many { Err(now) } else { waiter.turn(now) };
            let wake_at = match turn {
                Err(look_at) if !is_one_too_many && end.is_none_or(may_pass_by) => look_at,
                Err(_) => {
                    return self.denial_now(&subject, cost, plan, &own, waiter.ahead()).await;
                }
                Ok(()) => {
                    // As long as the server may take, nobody thinks that it is not there.
                    waiter.asks_at(now.checked_add(self.timeout).unwrap_or(now));
                    let decision = self.decide_or_wait(subject.clone(), cost, plan, true).await?;
                    let Err(limited) = &decision.outcome else { return Ok(decision) };
                    let ready = limited.ready_at();
                    let Some(at) = ready.filter(|at| end.is_none_or(|end| *at <= end)) else {
                        if ready.is_some() {
                            self.count_denial(&subject, place_of(limited, limits));
                        }
                        return Ok(decision);
                    };
                    let at = self.wait.jittered(at, &mut rand::make_rng());
                    waiter.asks_at(at);
                    at
                }
            };
            let wake_at = end.map_or(wake_at, |end| wake_at.min(end));
            // Over sooner where it may come to the head, or the limits change.
            let _ = timeout_at(wake_at, waiter.told_or(change)).await;
            *has_waited = true;
        }
    }

    /// What a check would be told now, behind those that wait for `ahead` units, if it were told to wait: as many wait
    /// as may, it can't pass in time, or the time was over before it was this one's turn to check.
    async fn denial_now(
        &self,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
        own: &Plan,
        ahead: u64,
    ) -> Result<Decision, Error> {
        let limits = plan.unwrap_or(&own.limits);
        let (limited, remaining) = match self.look(subject, cost, plan, own).await {
            Ok(Reply { outcome, remaining }) => {
                let (mut place, mut wait) =
                    self.least_wait(limits, ahead.saturating_add(cost.into()));
                if let Outcome::Denied { limit, wait: room_in } = outcome
                    && room_in >= wait
                {
                    (place, wait) = (limit, room_in);
                }
                let several = exceeded(limits, &remaining, cost);
                let ready = Instant::now().checked_add(wait).unwrap_or_else(Instant::now);
                let limited =
                    Limited::new(limits[place].clone(), cost, Some(ready.into()), several);
                (limited, remaining)
            }
            Err(error) => {
                let soonest = self.fallback.soonest(error, subject, cost, limits).await?;
                self.counters.by_policy.add(1);
                let Some(soonest) = soonest else { return Ok(uncounted()) };
                soonest
            }
        };
        self.count_denial(subject, place_of(&limited, limits));
        Ok(Decision { outcome: Err(limited), remaining })
    }

    /// How long it takes at the least until so many units have passed, whatever is in use now; and by which limit.
    fn least_wait(&self, limits: &[Limit], units: u64) -> (usize, Duration) {
        let least = |limit: &Limit| {
            let quota = u64::from(limit.quota());
            let (times, of) = match self.window {
                // A quota at once, and then one after the other.
                Window::Gcra => (units.saturating_sub(quota), limit.per() / limit.quota()),
                _ => (units.saturating_sub(1) / quota, limit.per()),
            };
            let nanoseconds = u64::try_from(of.as_nanos() * u128::from(times));
            Duration::from_nanos(nanoseconds.unwrap_or(u64::MAX))
        };
        let each = limits.iter().map(least).enumerate();
        each.max_by_key(|(_, wait)| *wait).unwrap_or_default()
    }
}
