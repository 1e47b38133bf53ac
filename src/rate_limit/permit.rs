use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroU64,
    sync::{
        PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{Limit, algorithm::Charge, per_limit::PerLimit};
use crate::engine::{clock::LazyInstant, coop};

/// Leave to go on, charged to a key. Dropping it changes nothing: it was used.
#[derive(Debug)]
pub struct Permit {
    pub(super) limiter: u64,
    /// Of the key.
    pub(super) hash: u64,
    /// The state that was charged; `None` where it is the one that keys beyond the bound share.
    pub(super) state: Option<NonZeroU64>,
    pub(super) charges: PerLimit<Charge>,
    pub(super) remaining: u32,
}

/// What is left of one [`Limit`] for one key, at the moment of asking.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) limit: Limit,
    pub(crate) remaining: u32,
    pub(crate) more_at: Option<Instant>,
}

/// What is left for one key, at the moment of asking.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) standings: PerLimit<Standing>,
    /// When one unit would pass, where none does.
    pub(crate) ready: Option<Instant>,
}

/// No leave to go on; nothing was charged.
///
/// With feature `axum` it is a response: a handler may end with `limiter.check(&user).await?`.
#[derive(Clone, Debug)]
pub struct Limited {
    /// Which had no room.
    pub(crate) limit: Limit,
    pub(crate) cost: u32,
    pub(crate) ready: Option<LazyInstant>,
}

impl Permit {
    /// How many units of one call more would pass now: the least that any limit has left.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Takes back exactly what was charged for this permit, of all limits; nothing of what has left the
    /// window meanwhile, or was [`reset`](super::RateLimiter::reset), or where the limiter is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before its end took nothing back.
    pub async fn refund(self) {
        coop::proceed().await;
        self.refund_now();
    }

    pub(crate) fn refund_now(self) {
        if self.charges.is_empty() {
            return;
        }
        let limiters = LIMITERS.read().unwrap_or_else(PoisonError::into_inner);
        let limiter = limiters.get(&self.limiter).and_then(Weak::upgrade);
        drop(limiters);
        if let Some(limiter) = limiter {
            limiter.refund(&self);
        }
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

impl Limited {
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

/// What takes back what was charged for a permit.
pub(super) trait Refund: Send + Sync {
    fn refund(&self, permit: &Permit);
}

/// The limiters there are. A permit names its limiter by number: to count references would cost each
/// check as much as all the rest, for the sake of the few permits that are given back.
static LIMITERS: RwLock<BTreeMap<u64, Weak<dyn Refund>>> = RwLock::new(BTreeMap::new());

/// A limiter's place among [`LIMITERS`], as long as this lives.
pub(super) struct Registered(pub(super) u64);

impl Registered {
    pub(super) fn new(limiter: Weak<dyn Refund>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Relaxed);
        LIMITERS.write().unwrap_or_else(PoisonError::into_inner).insert(id, limiter);
        Self(id)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        LIMITERS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
