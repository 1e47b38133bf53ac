//! Async lookup of the limits of keys, whose results are cached.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_core::future::BoxFuture;
use tokio::time::Instant;

use super::key::bounded;
use crate::{cache::Cache, rate_limit::Limit};

/// Maximum number of cached keys, so that a client cannot fill memory by rotating keys.
const MAX_CACHED: usize = 100_000;

/// Time for which the last limits of a key are used while their look-up fails.
const MAX_STALE: Duration = Duration::from_secs(3_600);

/// Minimum time between two log messages: while a database is down, the look-up of every request fails.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

pub(super) type LimitsOverride = Option<Arc<[Limit]>>;

pub(super) struct LimitsLookup<K> {
    cached: Cache<K, LimitsOverride>,
    ttl: Duration,
    look_up: LookUpFn<K>,
}

type LookUpFn<K> =
    Arc<dyn Fn(K) -> BoxFuture<'static, Result<LimitsOverride, LookupFailed>> + Send + Sync>;

/// Failure of a look-up, which was reported when it occurred.
#[derive(Debug)]
struct LookupFailed;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> LimitsLookup<K> {
    pub(super) fn new<F>(ttl: Duration, look_up: impl Fn(K) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = LimitsOverride> + Send + 'static,
    {
        Self::fallible(ttl, move |key| {
            let limits = look_up(key);
            async move { Ok::<_, LookupFailed>(limits.await) }
        })
    }

    pub(super) fn fallible<F, E>(
        ttl: Duration,
        look_up: impl Fn(K) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<LimitsOverride, E>> + Send + 'static,
        E: Debug,
    {
        let cached = Cache::builder()
            .max_entries(MAX_CACHED)
            .stale_if_error(MAX_STALE)
            .name("plans")
            .build();
        let quiet_until = Arc::new(Mutex::new(None));
        let look_up: LookUpFn<K> = Arc::new(move |key| {
            let (limits, quiet_until) = (look_up(key), quiet_until.clone());
            Box::pin(async move {
                limits.await.map_err(|error| {
                    log_failure(&error, &quiet_until);
                    LookupFailed
                })
            })
        });
        Self { cached, ttl, look_up }
    }

    /// Returns the limits of a key; `None` for the limiter's own.
    pub(super) async fn get(&self, key: K) -> LimitsOverride {
        // The cache is keyed by the shortened key; the lookup gets the whole one.
        let cache_key = bounded(key.clone());
        // Owned by the load, which may outlive this call as a background task or for its followers.
        let look_up = self.look_up.clone();
        let limits = self.cached.get_or_try_set_with(&cache_key, self.ttl, move || look_up(key));
        // An error is not cached, so the next request looks the limits up again.
        limits.await.unwrap_or(None)
    }
}

fn log_failure(error: &impl Debug, quiet_until: &Mutex<Option<Instant>>) {
    let now = Instant::now();
    let mut until = quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
    if until.is_some_and(|until| now < until) {
        return;
    }
    *until = now.checked_add(LOG_INTERVAL);
    // Unlocks before user code, which a tracing subscriber is.
    drop(until);
    tracing::warn!(?error, "look-up of rate limits failed");
}
