//! Waiting until a call passes. Who waits for one key in this process stands in a line, of which only the first
//! asks the server: all others would ask in vain.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{super::Error, check::Decision, protocol::Remaining, state::LimiterState};
use crate::rate_limit::{Limit, Limited, before};

impl LimiterState {
    pub(super) async fn until_ready(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<Decision, Error> {
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        let (_waiter, head) = self.waiting.join(subject.clone(), cost);
        let mut turn = pin!(head.turn.lock());
        // Until it passes: who is dropped lets the next one be the first.
        let _turn = loop {
            let mut change = pin!(self.plan.change());
            change.as_mut().enable();
            // Again after each change: what may pass now, or never will, waits for nobody.
            let own = self.plan.present();
            if cost == 0 || plan.unwrap_or(&own.limits).iter().any(|limit| limit.quota() < cost) {
                return self.decide(subject, cost, plan).await;
            }
            let first = before(turn.as_mut(), change);
            let first = match end {
                None => first.await,
                Some(end) => match timeout_at(end, first).await {
                    Ok(first) => first,
                    Err(_) => return self.denial_now(&subject, cost, plan).await,
                },
            };
            if let Some(turn) = first {
                break turn;
            }
        };
        loop {
            let mut change = pin!(self.plan.change());
            change.as_mut().enable();
            let decision = self.decide(subject.clone(), cost, plan).await?;
            let ready = match &decision.outcome {
                Ok(_) => return Ok(decision),
                Err(limited) => limited.ready_at(),
            };
            match ready {
                Some(ready) if end.is_none_or(|end| ready <= end) => {
                    // Over sooner where the limits change.
                    let _ = timeout_at(ready, change).await;
                }
                _ => return Ok(decision),
            }
        }
    }

    /// What a check would be told now, if it were told to wait: the time was over before it was this one's turn to
    /// check.
    async fn denial_now(
        &self,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
    ) -> Result<Decision, Error> {
        let state = self.peek(subject, plan).await?;
        self.counters.denied.add(1);
        let standings = state.standings();
        let longest = standings.iter().filter(|standing| standing.remaining < cost);
        let longest = longest.max_by_key(|standing| standing.more_at).or(standings.first());
        let limit =
            longest.map_or(&self.plan.present().limits[0], |standing| &standing.limit).clone();
        let ready = Some(state.ready.unwrap_or_else(Instant::now).into());
        let outcome = Err(Limited::new(limit, cost, ready, None));
        Ok(Decision { outcome, remaining: standings.iter().map(Remaining::of).collect() })
    }
}
