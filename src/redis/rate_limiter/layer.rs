//! What the layer of feature `axum` asks beside the public verbs: all that its header fields tell.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::{super::Error, RateLimiter, permit::Permit, protocol::Remaining};
use crate::rate_limit::{Limit, Limited, PerLimit};

impl<K> RateLimiter<K> {
    /// The key on the server.
    pub(crate) fn subject<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>, Error> {
        self.state.subject(key)
    }

    /// [`check_n_with`](RateLimiter::check_n_with), or a wait for it, and what it left of each limit; nothing where
    /// nobody knows. And whether it had to wait.
    pub(crate) async fn decide(
        &self,
        subject: Vec<u8>,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<(Result<Permit, Limited>, PerLimit<Remaining>, bool), Error> {
        let (decision, has_waited) = match max_wait {
            None => (self.state.decide(subject, cost, limits).await?, false),
            Some(_) => self.state.until_ready(subject, cost, limits, max_wait).await?,
        };
        Ok((decision.outcome, decision.remaining, has_waited))
    }

    /// Of those denied, one was let pass.
    pub(crate) fn count_shadowed(&self) {
        self.state.counters.shadowed.add(1);
    }

    /// The limits that were set in place of the first ones.
    pub(crate) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        self.state.plan.changed()
    }

    /// What is left of each limit.
    pub(crate) async fn left(
        &self,
        subject: &[u8],
        limits: Option<&[Limit]>,
    ) -> Result<PerLimit<Remaining>, Error> {
        let state = self.state.peek(subject, limits).await?;
        Ok(state.standings().iter().map(Remaining::of).collect())
    }
}
