//! Results of a peek: the remaining quota of a key, for each of its limits.

use std::time::Duration;

use tokio::time::Instant;

use super::{Limit, per_limit::PerLimit};

/// Remaining quota of one key, at the time of the call.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) standings: PerLimit<Standing>,
    /// When one unit would pass; `None` if it would pass now.
    pub(crate) ready: Option<Instant>,
}

/// Remaining quota of one key by one [`Limit`], at the time of the call.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) limit: Limit,
    pub(crate) remaining: u32,
    pub(crate) more_at: Option<Instant>,
}

impl State {
    /// Returns how many units would have passed in one call: the smallest number that any limit had left.
    pub fn remaining(&self) -> u32 {
        self.standings.iter().map(Standing::remaining).min().unwrap_or(u32::MAX)
    }

    /// Returns how long, from now, a call of one unit would have to wait; zero if it would pass.
    pub fn retry_after(&self) -> Duration {
        self.ready.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the remaining quota of each limit, in the order in which the limits were given.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }
}

impl Standing {
    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns how many units of the limit were left.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns the time from now until more units may pass; `None` if the whole quota is left.
    pub fn more_after(&self) -> Option<Duration> {
        Some(self.more_at?.saturating_duration_since(Instant::now()))
    }
}
