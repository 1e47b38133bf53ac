//! Waiting until a call passes. Who waits for one key in this process stands in a line, of which only the first
//! asks the server: all others would ask in vain.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{super::Error, permit::Permit, state::LimiterState};
use crate::rate_limit::Limited;

impl LimiterState {
    pub(super) async fn until_ready(
        self: &Arc<Self>,
        subject: Vec<u8>,
        max_wait: Option<Duration>,
    ) -> Result<Permit, Error> {
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        let waiter = self.waiting.join(subject.clone());
        let first = waiter.queue.lock();
        // Until it passes: who is dropped lets the next one be the first.
        let _first = match end {
            None => first.await,
            Some(end) => match timeout_at(end, first).await {
                Ok(first) => first,
                Err(_) => return Err(self.limited_now(&subject).await?.into()),
            },
        };
        loop {
            let limited = match self.decide(subject.clone(), 1, None).await?.outcome {
                Ok(permit) => return Ok(permit),
                Err(limited) => limited,
            };
            match limited.ready_at() {
                Some(ready) if end.is_none_or(|end| ready <= end) => sleep_until(ready).await,
                _ => return Err(limited.into()),
            }
        }
    }

    /// What a check of one unit would be told now, if it were told to wait: the time was over before it was this
    /// one's turn to check.
    async fn limited_now(&self, subject: &[u8]) -> Result<Limited, Error> {
        let state = self.peek(subject, None).await?;
        let longest = state.standings().iter().filter(|standing| standing.remaining == 0);
        let longest = longest.max_by_key(|standing| standing.more_at);
        let limit = longest.map_or(&self.limits[0], |standing| &standing.limit).clone();
        Ok(Limited { limit, cost: 1, ready: Some(state.ready.unwrap_or_else(Instant::now).into()) })
    }
}
