//! Async lookup of the limits of keys, whose results are cached.

use std::{hash::Hash, sync::Arc, time::Duration};

use futures_core::future::BoxFuture;

use super::key::bounded;
use crate::{cache::Cache, rate_limit::Limit};

/// Maximum number of cached keys, so that a client cannot fill memory by rotating keys.
const MAX_CACHED: usize = 100_000;

pub(super) type LimitsOverride = Option<Arc<[Limit]>>;

pub(super) struct LimitsLookup<K> {
    cached: Cache<K, LimitsOverride>,
    ttl: Duration,
    look_up: Arc<dyn Fn(K) -> BoxFuture<'static, LimitsOverride> + Send + Sync>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> LimitsLookup<K> {
    pub(super) fn new<F>(ttl: Duration, look_up: impl Fn(K) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = LimitsOverride> + Send + 'static,
    {
        let cached = Cache::builder().max_entries(MAX_CACHED).name("plans").build();
        Self { cached, ttl, look_up: Arc::new(move |key| Box::pin(look_up(key))) }
    }

    /// Returns the limits of a key; `None` for the limiter's own.
    pub(super) async fn get(&self, key: K) -> LimitsOverride {
        // The cache is keyed by the shortened key; the lookup gets the whole one.
        let cache_key = bounded(key.clone());
        // Owned by the load, which may outlive this call as a background task or for its followers.
        let look_up = self.look_up.clone();
        self.cached.get_or_set_with(&cache_key, self.ttl, move || look_up(key)).await
    }
}
