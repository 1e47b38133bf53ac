//! Limiter of a layer: one in memory, which decides immediately, or one on Redis.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::key::bounded;
use crate::{
    engine::clock::{LazyNow, Tick},
    rate_limit::{Limit, Limited, PerLimit, Permit, RateLimiter, Remaining},
};
#[cfg(feature = "redis")]
use crate::{
    engine::{clock::Clock, hasher::DefaultHasher},
    redis,
};

/// Limiter of a [`RateLimitLayer`](super::RateLimitLayer): a [`RateLimiter`], or the one of feature `redis`. You need
/// not name it: pass either of them to a constructor of the layer.
pub struct LayerLimiter<K, S>(Backend<K, S>);

/// Backend that decides requests.
pub(super) enum Backend<K, S> {
    Memory(RateLimiter<K, S>),
    #[cfg(feature = "redis")]
    Redis(Arc<RedisBackend<K>>),
}

#[cfg(feature = "redis")]
pub(super) struct RedisBackend<K> {
    limiter: redis::RateLimiter<K>,
    /// Serializes a key. Stored as a function, so that keys of layers need `Serialize` only with this backend.
    subject: fn(&redis::RateLimiter<K>, &K) -> Result<Vec<u8>, redis::Error>,
    /// Converts the instants of Redis' answers to ticks, from which the fields are computed.
    clock: Clock,
}

/// Permit of either backend.
pub(super) enum LayerPermit {
    Memory(Permit),
    #[cfg(feature = "redis")]
    Redis(redis::Permit),
}

/// Change of a charge that a response demands.
#[derive(Clone, Copy)]
pub(super) enum Correction {
    Refund,
    Settle(u32),
    /// A failure, which was not charged before.
    Charge(u32),
}

impl LayerPermit {
    /// Settles the permit: immediately in memory, by a detached task on Redis. A failure of that task is logged.
    pub(super) fn settle_soon(self, actual: u32, runtime: &Option<Handle>) {
        match (self, runtime) {
            (Self::Memory(permit), _) => permit.settle_now(actual),
            #[cfg(feature = "redis")]
            // Detached, because a drop cannot await.
            (Self::Redis(permit), Some(runtime)) => drop(runtime.spawn(permit.settle(actual))),
            #[cfg(feature = "redis")]
            (Self::Redis(_), None) => tracing::error!(
                "failed to settle a permit on Redis: the request ran outside of a Tokio runtime"
            ),
        }
    }
}

/// Decision of a backend about a request.
pub(super) struct BackendDecision {
    pub(super) permit: Result<LayerPermit, Limited>,
    /// Remaining quota, by limit; empty if it is unknown.
    pub(super) remaining: PerLimit<Remaining>,
    /// Time that the request had to wait; `None` if it did not.
    pub(super) waited: Option<Duration>,
}

impl<K, S> LayerLimiter<K, S> {
    #[inline]
    pub(super) fn backend(&self) -> &Backend<K, S> {
        &self.0
    }

    pub(super) fn limits(&self) -> Arc<[Limit]> {
        match &self.0 {
            Backend::Memory(limiter) => limiter.limits(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.limits(),
        }
    }

    /// Returns the limits set by `set_limits`; `None` while the first ones apply.
    pub(super) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        match &self.0 {
            Backend::Memory(limiter) => limiter.changed_limits(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.changed_limits(),
        }
    }

    /// Counts a denied request that a layer in shadow mode admitted.
    pub(super) fn count_shadowed(&self) {
        match &self.0 {
            Backend::Memory(limiter) => limiter.count_shadowed(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.count_shadowed(),
        }
    }

    /// Converts a tick of a [`Remaining`] to an instant.
    pub(super) fn instant(&self, at: Tick) -> Instant {
        match &self.0 {
            Backend::Memory(limiter) => limiter.instant(at),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.clock.instant(at),
        }
    }

    /// Returns the current time, to compare with ticks of a [`Remaining`].
    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        match &self.0 {
            Backend::Memory(limiter) => limiter.lazy_now(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.clock.lazy_now(),
        }
    }
}

impl<K: 'static, S> LayerLimiter<K, S> {
    /// Returns the key as it is counted: a long one is shortened for a limiter in memory.
    #[inline]
    pub(super) fn bounded(&self, key: K) -> K {
        match &self.0 {
            Backend::Memory(_) => bounded(key),
            // The limiter on Redis shortens long keys itself, by a hash that is the same in all processes.
            #[cfg(feature = "redis")]
            Backend::Redis(_) => key,
        }
    }
}

#[cfg(feature = "redis")]
impl<K> RedisBackend<K> {
    pub(super) async fn decide(
        &self,
        key: &K,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
        probes: bool,
    ) -> Result<BackendDecision, redis::Error> {
        let subject = (self.subject)(&self.limiter, key)?;
        let start = Instant::now();
        let (outcome, left, has_waited) = if probes {
            self.limiter.probe(subject, cost, limits, max_wait).await?
        } else {
            self.limiter.decide(subject, cost, limits, max_wait).await?
        };
        Ok(BackendDecision {
            permit: outcome.map(LayerPermit::Redis),
            remaining: self.in_ticks(&left),
            waited: has_waited.then(|| start.elapsed()),
        })
    }

    /// Corrects a charge and returns the remaining quota, by limit; empty if it is unknown.
    pub(super) async fn correct(
        &self,
        permit: redis::Permit,
        correction: Correction,
        key: &K,
        limits: Option<&[Limit]>,
    ) -> PerLimit<Remaining> {
        // A failure changes only the charge, not the response; the limiter logs it.
        let _ = match correction {
            Correction::Refund => permit.refund().await,
            Correction::Settle(actual) => permit.settle(actual).await,
            Correction::Charge(actual) => permit.charge_failure(actual).await,
        };
        let left = match (self.subject)(&self.limiter, key) {
            Ok(subject) => self.limiter.left(&subject, limits).await,
            Err(error) => Err(error),
        };
        left.map_or_else(|_| PerLimit::Many([].into()), |left| self.in_ticks(&left))
    }

    fn in_ticks(&self, left: &[redis::Remaining]) -> PerLimit<Remaining> {
        let tick = |left: &redis::Remaining| Remaining {
            units: left.remaining,
            more_at: left.more_at.map(|at| self.clock.tick_of(at)),
        };
        left.iter().map(tick).collect()
    }
}

impl<K, S> From<RateLimiter<K, S>> for LayerLimiter<K, S> {
    fn from(limiter: RateLimiter<K, S>) -> Self {
        Self(Backend::Memory(limiter))
    }
}

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl<K: serde::Serialize> From<redis::RateLimiter<K>> for LayerLimiter<K, DefaultHasher> {
    fn from(limiter: redis::RateLimiter<K>) -> Self {
        // Instantiated here, the only place where `K: Serialize` is known.
        let subject = redis::RateLimiter::subject::<K>;
        Self(Backend::Redis(Arc::new(RedisBackend { limiter, subject, clock: Clock::new() })))
    }
}

impl<K, S> Clone for LayerLimiter<K, S> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Backend::Memory(limiter) => Backend::Memory(limiter.clone()),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => Backend::Redis(backend.clone()),
        })
    }
}

impl<K, S> fmt::Debug for LayerLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Backend::Memory(limiter) => limiter.fmt(f),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.fmt(f),
        }
    }
}
