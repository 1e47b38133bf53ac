//! What a peek tells: how a key stands with each of its limits.

use std::time::Duration;

use tokio::time::Instant;

use super::{Limit, per_limit::PerLimit};

/// What is left for one key, at the moment of asking.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) standings: PerLimit<Standing>,
    /// When one unit would pass, where none does.
    pub(crate) ready: Option<Instant>,
}

/// What is left of one [`Limit`] for one key, at the moment of asking.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) limit: Limit,
    pub(crate) remaining: u32,
    pub(crate) more_at: Option<Instant>,
}

impl State {
    /// How many units of one call would pass now: the least that any limit has left.
    pub fn remaining(&self) -> u32 {
        self.standings.iter().map(Standing::remaining).min().unwrap_or(u32::MAX)
    }

    /// How long from now a call of one unit would have to wait: zero where one would pass.
    pub fn retry_after(&self) -> Duration {
        self.ready.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Each limit, in the order in which they were given.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }
}

impl Standing {
    /// The limit that this is of.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// How many units may still pass now.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// In how long more units may pass than now; `None` where all of the quota may.
    pub fn more_after(&self) -> Option<Duration> {
        Some(self.more_at?.saturating_duration_since(Instant::now()))
    }
}
