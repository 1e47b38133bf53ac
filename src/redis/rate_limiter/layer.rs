//! Methods for the layer of feature `axum`, which return all that its header fields report.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::{super::Error, RateLimiter, permit::Permit, protocol::Remaining};
use crate::rate_limit::{Limit, Limited, PerLimit};

impl<K> RateLimiter<K> {
    /// Returns the key on the server.
    pub(crate) fn subject<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>, Error> {
        self.state.subject(key)
    }

    /// Checks like [`check_n_with`](RateLimiter::check_n_with), or waits for at most `max_wait`. Returns the outcome,
    /// the remaining quota of each limit (empty if unknown), and whether the call waited.
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

    /// Decides as `decide`, without a charge: the permit has cost 0.
    pub(crate) async fn probe(
        &self,
        subject: Vec<u8>,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<(Result<Permit, Limited>, PerLimit<Remaining>, bool), Error> {
        let (decision, has_waited) = match max_wait {
            None => (self.state.probe(subject, cost, limits, false).await?, false),
            Some(max_wait) => self.state.probe_within(subject, cost, limits, max_wait).await?,
        };
        Ok((decision.outcome, decision.remaining, has_waited))
    }

    /// Counts a denial that the layer admitted in shadow mode.
    pub(crate) fn count_shadowed(&self) {
        self.state.counters.shadowed.add(1);
    }

    /// Returns the limits if they replaced those of the builder.
    pub(crate) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        self.state.current_limits.changed()
    }

    /// Returns the remaining quota of each limit.
    pub(crate) async fn left(
        &self,
        subject: &[u8],
        limits: Option<&[Limit]>,
    ) -> Result<PerLimit<Remaining>, Error> {
        let state = self.state.peek(subject, limits).await?;
        Ok(state.standings().iter().map(Remaining::of).collect())
    }
}
