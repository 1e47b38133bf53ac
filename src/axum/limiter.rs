#[cfg(feature = "redis")]
use std::sync::Arc;
use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use ::axum::response::Response;

use super::key::bounded;
use crate::{
    engine::clock::LazyNow,
    rate_limit::{Limit, Limited, PerLimit, Permit, RateLimiter, Remaining},
};
#[cfg(feature = "redis")]
use crate::{
    engine::{clock::Clock, hasher::DefaultHasher},
    redis,
};

/// What counts for a [`RateLimitLayer`](super::RateLimitLayer): a [`RateLimiter`], or one of feature `redis`.
pub struct LayerLimiter<K, S>(Kind<K, S>);

enum Kind<K, S> {
    Memory(RateLimiter<K, S>),
    #[cfg(feature = "redis")]
    Redis(Arc<OnRedis<K>>),
}

#[cfg(feature = "redis")]
struct OnRedis<K> {
    limiter: redis::RateLimiter<K>,
    /// The layer's keys need not be written anywhere, but for this limiter.
    subject: fn(&redis::RateLimiter<K>, &K) -> Result<Vec<u8>, redis::Error>,
    clock: Clock,
}

/// A permit of either.
pub(super) enum LayerPermit {
    Memory(Permit),
    #[cfg(feature = "redis")]
    Redis(redis::Permit),
}

/// What was decided of a request, and what is left of each limit; or the answer where that is not known.
pub(super) type Decided = Result<(Result<LayerPermit, Limited>, PerLimit<Remaining>), Response>;

impl<K, S> LayerLimiter<K, S> {
    /// The one that decides at once.
    #[inline]
    pub(super) fn in_memory(&self) -> Option<&RateLimiter<K, S>> {
        match &self.0 {
            Kind::Memory(limiter) => Some(limiter),
            #[cfg(feature = "redis")]
            Kind::Redis(_) => None,
        }
    }

    pub(super) fn limits(&self) -> &[Limit] {
        match &self.0 {
            Kind::Memory(limiter) => limiter.limits(),
            #[cfg(feature = "redis")]
            Kind::Redis(on_redis) => on_redis.limiter.limits(),
        }
    }

    /// The present, for what is [`Remaining`].
    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        match &self.0 {
            Kind::Memory(limiter) => limiter.lazy_now(),
            #[cfg(feature = "redis")]
            Kind::Redis(on_redis) => on_redis.clock.lazy_now(),
        }
    }
}

impl<K, S> LayerLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// A key as this limiter takes it: in memory, a long one is shortened here.
    #[inline]
    pub(super) fn bounded(&self, key: K) -> K {
        match &self.0 {
            Kind::Memory(_) => bounded(key),
            // By its own means, which are the same in all processes.
            #[cfg(feature = "redis")]
            Kind::Redis(_) => key,
        }
    }

    pub(super) async fn decide(&self, key: &K, cost: u32, limits: Option<&[Limit]>) -> Decided {
        match &self.0 {
            Kind::Memory(limiter) => {
                let (decided, left) = limiter.decide(key, cost, limits);
                Ok((decided.map(LayerPermit::Memory), left))
            }
            #[cfg(feature = "redis")]
            Kind::Redis(on_redis) => on_redis.decide(key, cost, limits).await,
        }
    }

    /// Takes back what a permit was charged; tells what is left then, if that is known.
    pub(super) async fn take_back(
        &self,
        permit: LayerPermit,
        key: &K,
        limits: Option<&[Limit]>,
    ) -> PerLimit<Remaining> {
        match (&self.0, permit) {
            (Kind::Memory(limiter), permit) => {
                permit.refund_now();
                limiter.remaining(key, limits)
            }
            #[cfg(feature = "redis")]
            (Kind::Redis(on_redis), permit) => on_redis.take_back(permit, key, limits).await,
        }
    }
}

impl LayerPermit {
    /// Of a limiter in memory.
    pub(super) fn refund_now(self) {
        match self {
            Self::Memory(permit) => permit.refund_now(),
            #[cfg(feature = "redis")]
            Self::Redis(_) => {}
        }
    }
}

#[cfg(feature = "redis")]
impl<K> OnRedis<K> {
    async fn decide(&self, key: &K, cost: u32, limits: Option<&[Limit]>) -> Decided {
        use ::axum::response::IntoResponse;

        let subject = (self.subject)(&self.limiter, key).map_err(IntoResponse::into_response)?;
        let decided = self.limiter.decide(subject, cost, limits).await;
        let (outcome, left) = decided.map_err(IntoResponse::into_response)?;
        Ok((outcome.map(LayerPermit::Redis), self.ticks(&left)))
    }

    async fn take_back(
        &self,
        permit: LayerPermit,
        key: &K,
        limits: Option<&[Limit]>,
    ) -> PerLimit<Remaining> {
        if let LayerPermit::Redis(permit) = permit {
            // The answer is made already; that it failed is logged.
            let _ = permit.refund().await;
        }
        let left = match (self.subject)(&self.limiter, key) {
            Ok(subject) => self.limiter.left(&subject, limits).await,
            Err(error) => Err(error),
        };
        left.map_or_else(|_| PerLimit::Many([].into()), |left| self.ticks(&left))
    }

    fn ticks(&self, left: &[redis::Left]) -> PerLimit<Remaining> {
        let tick = |left: &redis::Left| Remaining {
            units: left.remaining,
            more_at: left.more_at.map(|at| self.clock.tick_of(at)),
        };
        left.iter().map(tick).collect()
    }
}

impl<K, S> From<RateLimiter<K, S>> for LayerLimiter<K, S> {
    fn from(limiter: RateLimiter<K, S>) -> Self {
        Self(Kind::Memory(limiter))
    }
}

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl<K: serde::Serialize> From<redis::RateLimiter<K>> for LayerLimiter<K, DefaultHasher> {
    fn from(limiter: redis::RateLimiter<K>) -> Self {
        let subject = redis::RateLimiter::subject::<K>;
        Self(Kind::Redis(Arc::new(OnRedis { limiter, subject, clock: Clock::new() })))
    }
}

impl<K, S> Clone for LayerLimiter<K, S> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Memory(limiter) => Kind::Memory(limiter.clone()),
            #[cfg(feature = "redis")]
            Kind::Redis(on_redis) => Kind::Redis(on_redis.clone()),
        })
    }
}

impl<K, S> fmt::Debug for LayerLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory(limiter) => limiter.fmt(f),
            #[cfg(feature = "redis")]
            Kind::Redis(on_redis) => on_redis.limiter.fmt(f),
        }
    }
}

/// A limit that has no room is answered as [`Limited`] is, by a 429; what may be otherwise in a moment by a 503
/// with `Retry-After`, and all else by a 500. Of these two, nothing tells why.
///
/// # Examples
///
/// ```no_run
/// use axum::{extract::Path, Router, routing::get};
/// use fleeting::{Limit, redis::{Client, Error, RateLimiter}};
///
/// # #[tokio::main] async fn main() -> Result<(), Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let limiter = RateLimiter::<String>::builder(&client, "api").limit(Limit::per_second(5)).build()?;
/// let hello = async move |Path(user): Path<String>| -> Result<String, Error> {
///     limiter.check(&user).await?;
///     Ok(format!("hello {user}"))
/// };
/// let app: Router = Router::new().route("/{user}", get(hello));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(all(feature = "axum", feature = "redis"))))]
impl ::axum::response::IntoResponse for redis::Error {
    fn into_response(self) -> Response {
        use ::axum::http::{StatusCode, header};

        match self {
            redis::Error::Limited(limited) => limited.into_response(),
            error if error.is_temporary() => {
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response()
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}
