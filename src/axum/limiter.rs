//! What a layer counts with: a limiter in memory, which decides at once, or one on Redis.

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

/// What counts for a [`RateLimitLayer`](super::RateLimitLayer): a [`RateLimiter`], or one of feature `redis`.
pub struct LayerLimiter<K, S>(Backend<K, S>);

/// Who decides: at once in memory, or when Redis has answered.
pub(super) enum Backend<K, S> {
    Memory(RateLimiter<K, S>),
    #[cfg(feature = "redis")]
    Redis(Arc<RedisBackend<K>>),
}

#[cfg(feature = "redis")]
pub(super) struct RedisBackend<K> {
    limiter: redis::RateLimiter<K>,
    /// The layer's keys need not be written anywhere, but for this limiter.
    subject: fn(&redis::RateLimiter<K>, &K) -> Result<Vec<u8>, redis::Error>,
    /// Redis tells instants, and the fields of an answer are made of ticks.
    clock: Clock,
}

/// A permit of either.
pub(super) enum LayerPermit {
    Memory(Permit),
    #[cfg(feature = "redis")]
    Redis(redis::Permit),
}

/// What an answer says of the cost of its request.
#[derive(Clone, Copy)]
pub(super) enum Correction {
    Refund,
    Settle(u32),
}

impl LayerPermit {
    /// At once in memory; on Redis by a task of the runtime, which nobody waits for. That it failed is logged.
    pub(super) fn settle_soon(self, actual: u32, runtime: &Option<Handle>) {
        match (self, runtime) {
            (Self::Memory(permit), _) => permit.settle_now(actual),
            #[cfg(feature = "redis")]
            (Self::Redis(permit), Some(runtime)) => drop(runtime.spawn(permit.settle(actual))),
            #[cfg(feature = "redis")]
            (Self::Redis(_), None) => tracing::error!("no runtime to settle on"),
        }
    }
}

/// What was decided of a request.
pub(super) struct Decision {
    pub(super) permit: Result<LayerPermit, Limited>,
    /// Of each limit.
    pub(super) remaining: PerLimit<Remaining>,
    /// How long it took where it had to wait.
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

    /// The limits that were set in place of the first ones.
    pub(super) fn changed_limits(&self) -> Option<Arc<[Limit]>> {
        match &self.0 {
            Backend::Memory(limiter) => limiter.changed_limits(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.changed_limits(),
        }
    }

    /// Of those denied, one was let pass.
    pub(super) fn count_shadowed(&self) {
        match &self.0 {
            Backend::Memory(limiter) => limiter.count_shadowed(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.limiter.count_shadowed(),
        }
    }

    /// The instant of what is [`Remaining`].
    pub(super) fn instant(&self, at: Tick) -> Instant {
        match &self.0 {
            Backend::Memory(limiter) => limiter.instant(at),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.clock.instant(at),
        }
    }

    /// The present, for what is [`Remaining`].
    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        match &self.0 {
            Backend::Memory(limiter) => limiter.lazy_now(),
            #[cfg(feature = "redis")]
            Backend::Redis(backend) => backend.clock.lazy_now(),
        }
    }
}

impl<K: 'static, S> LayerLimiter<K, S> {
    /// A key as this limiter takes it: in memory, a long one is shortened here.
    #[inline]
    pub(super) fn bounded(&self, key: K) -> K {
        match &self.0 {
            Backend::Memory(_) => bounded(key),
            // By its own means, which are the same in all processes.
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
    ) -> Result<Decision, redis::Error> {
        let subject = (self.subject)(&self.limiter, key)?;
        let start = Instant::now();
        let (outcome, left, has_waited) =
            self.limiter.decide(subject, cost, limits, max_wait).await?;
        Ok(Decision {
            permit: outcome.map(LayerPermit::Redis),
            remaining: self.in_ticks(&left),
            waited: has_waited.then(|| start.elapsed()),
        })
    }

    /// Corrects what was charged, and tells what is left of each limit then; of none where that is not known.
    pub(super) async fn correct(
        &self,
        permit: redis::Permit,
        correction: Correction,
        key: &K,
        limits: Option<&[Limit]>,
    ) -> PerLimit<Remaining> {
        // The answer is made already; that it failed is logged.
        let _ = match correction {
            Correction::Refund => permit.refund().await,
            Correction::Settle(actual) => permit.settle(actual).await,
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
