//! Waiting until a call passes. Who waits for one key in this process stands in a line, of which only the first
//! asks the server: all others would ask in vain.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    super::Error,
    check::{Decision, uncounted},
    protocol::Remaining,
    state::LimiterState,
};
use crate::rate_limit::{Limit, Limited};

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
            if cost == 0 || plan.unwrap_or(&own.limits).iter().any(|limit| limit.quota() < cost) {
                return self.decide(subject, cost, plan).await;
            }
            if is_one_too_many {
                return self.denial_now(&subject, cost, plan).await;
            }
            let now = Instant::now();
            let wake_at = match waiter.turn(now) {
                Err(look_at) if end.is_none_or(|end| now < end) => look_at,
                Err(_) => return self.denial_now(&subject, cost, plan).await,
                Ok(()) => {
                    // As long as the server may take, nobody thinks that it is not there.
                    waiter.asks_at(now.checked_add(self.timeout).unwrap_or(now));
                    let decision = self.decide(subject.clone(), cost, plan).await?;
                    let ready = match &decision.outcome {
                        Ok(_) => return Ok(decision),
                        Err(limited) => limited.ready_at(),
                    };
                    let Some(at) = ready.filter(|at| end.is_none_or(|end| *at <= end)) else {
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

    /// What a check would be told now, if it were told to wait: as many wait as may, or the time was over before it was
    /// this one's turn to check.
    async fn denial_now(
        &self,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
    ) -> Result<Decision, Error> {
        let state = match self.peek(subject, plan).await {
            Ok(state) => state,
            Err(error) => {
                let own = self.plan.present();
                let limits = plan.unwrap_or(&own.limits);
                let state = self.fallback.peek(error, subject, limits).await?;
                self.counters.by_policy.add(1);
                let Some(state) = state else { return Ok(uncounted()) };
                state
            }
        };
        let standings = state.standings();
        let each = standings.iter().enumerate();
        let longest = each.clone().filter(|(_, standing)| standing.remaining < cost);
        let longest = longest.max_by_key(|(_, standing)| standing.more_at).or(each.clone().next());
        let place = longest.map_or(0, |(place, _)| place);
        self.count_denial(subject, place);
        let limit =
            longest.map_or(&self.plan.present().limits[0], |(_, standing)| &standing.limit).clone();
        let ready = Some(state.ready.unwrap_or_else(Instant::now).into());
        let outcome = Err(Limited::new(limit, cost, ready, None));
        Ok(Decision { outcome, remaining: standings.iter().map(Remaining::of).collect() })
    }
}
