//! The denial that a check ends in: by which limit, and when to come again. As a response of HTTP it is in
//! `axum/response.rs`.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::Limit;
use crate::engine::clock::LazyInstant;

/// No leave to go on; nothing was charged.
///
/// With feature `axum` it is a response: a handler may end with `limiter.check(&user).await?`.
#[derive(Clone, Debug)]
pub struct Limited {
    /// Which had no room.
    limit: Limit,
    cost: u32,
    ready: Option<LazyInstant>,
    /// All that had none, where they are several: most denials take no memory for it.
    several: Option<Box<Several>>,
}

/// Behind one word, as denials are moved about.
#[derive(Clone, Debug)]
pub(crate) struct Several(Box<[Limit]>);

impl Several {
    /// `None` for one alone.
    pub(crate) fn of<'a>(limits: impl Iterator<Item = &'a Limit>) -> Option<Box<Self>> {
        let limits: Box<[Limit]> = limits.cloned().collect();
        (limits.len() > 1).then(|| Box::new(Self(limits)))
    }
}

impl Limited {
    #[inline]
    pub(crate) fn new(
        limit: Limit,
        cost: u32,
        ready: Option<LazyInstant>,
        several: Option<Box<Several>>,
    ) -> Self {
        Self { limit, cost, ready, several }
    }

    /// How long from now until the call would pass, unless others are charged until then.
    /// [`Duration::MAX`] where it costs more than the quota and never will.
    pub fn retry_after(&self) -> Duration {
        match self.ready_at() {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    /// When the call would pass, unless others are charged until then. `None` where it costs more than
    /// the quota and never will.
    pub fn ready_at(&self) -> Option<Instant> {
        self.ready.map(LazyInstant::instant)
    }

    /// The limit that had no room for the call; of several, the one that it takes longest to wait for.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// All limits that had no room for the call, in the order in which they were given.
    pub fn exceeded(&self) -> &[Limit] {
        self.several.as_ref().map_or(std::slice::from_ref(&self.limit), |several| &several.0)
    }

    /// How many units the call would have cost.
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit();
        match self.ready_at() {
            None => write!(f, "a cost of {} can never pass a limit of {limit}", self.cost),
            Some(_) => write!(f, "over the limit of {limit}, retry after {:?}", self.retry_after()),
        }
    }
}

impl std::error::Error for Limited {}
