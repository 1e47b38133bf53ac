//! What the layer of feature `axum` asks beside the public verbs: all that its header fields tell.

use serde::Serialize;

use super::{super::Error, RateLimiter, permit::Permit, protocol::Remaining};
use crate::rate_limit::{Limit, Limited, PerLimit};

impl<K> RateLimiter<K> {
    /// The key on the server.
    pub(crate) fn subject<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>, Error> {
        self.state.subject(key)
    }

    /// [`check_n_with`](RateLimiter::check_n_with), and what it left of each limit; nothing where nobody knows.
    pub(crate) async fn decide(
        &self,
        subject: Vec<u8>,
        cost: u32,
        limits: Option<&[Limit]>,
    ) -> Result<(Result<Permit, Limited>, PerLimit<Remaining>), Error> {
        let decision = self.state.decide(subject, cost, limits).await?;
        Ok((decision.outcome, decision.remaining))
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
