//! Methods for the layer of feature `axum`, which return all that its header fields report.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::{super::Error, RateLimiter, check::Decision, permit::Permit, protocol::Remaining};
use crate::rate_limit::{Limit, Limited, PerLimit, Several, Standing};

/// Outcome of a request, the remaining quota of each limit, and whether the request had to wait.
type Decided = (Result<Permit, Limited>, PerLimit<Remaining>, bool);

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
    ) -> Result<Decided, Error> {
        let (decision, has_waited) = match max_wait {
            None => (self.state.decide(subject.clone(), cost, limits).await?, false),
            Some(_) => self.state.until_ready(subject.clone(), cost, limits, max_wait).await?,
        };
        Ok(self.with_remaining(subject, limits, decision, has_waited).await)
    }

    /// Decides as `decide`, without a charge: the permit has cost 0.
    pub(crate) async fn probe(
        &self,
        subject: Vec<u8>,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
    ) -> Result<Decided, Error> {
        let (decision, has_waited) = match max_wait {
            None => (self.state.probe(subject.clone(), cost, limits, false).await?, false),
            Some(max_wait) => {
                self.state.probe_within(subject.clone(), cost, limits, max_wait).await?
            }
        };
        Ok(self.with_remaining(subject, limits, decision, has_waited).await)
    }

    /// Adds the remaining quota to the denial of a cost above a quota, which was decided without the server. It stays
    /// unknown if the server fails.
    async fn with_remaining(
        &self,
        subject: Vec<u8>,
        limits: Option<&[Limit]>,
        decision: Decision,
        has_waited: bool,
    ) -> Decided {
        let Decision { mut outcome, mut remaining } = decision;
        if let Err(limited) = &outcome
            && limited.ready_at().is_none()
            && remaining.is_empty()
            && let Ok(state) = self.state.peek(&subject, limits).await
        {
            let exceeds = |standing: &&Standing| standing.limit() == limited.limit();
            if let Some(standing) = state.standings().iter().find(exceeds) {
                let several = Several::of(limited.exceeded().iter());
                let more_at = standing.more_at.map(Into::into);
                let denied = Limited::new(standing.limit.clone(), limited.cost(), more_at, several);
                outcome = Err(denied.with_remaining(standing.remaining));
            }
            remaining = state.standings().iter().map(Remaining::of).collect();
        }
        (outcome, remaining, has_waited)
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
