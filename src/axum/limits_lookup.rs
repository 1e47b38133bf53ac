//! The limits of keys, by a look-up that may take long and is asked seldom: what it said is kept in a cache.

use std::{hash::Hash, sync::Arc, time::Duration};

use futures_core::future::BoxFuture;

use super::key::bounded;
use crate::{cache::Cache, rate_limit::Limit};

/// So many keys are known at most: who asks under ever other names must not fill the memory.
const KNOWN: usize = 100_000;

pub(super) type Plan = Option<Arc<[Limit]>>;

pub(super) struct Plans<K> {
    known: Cache<K, Plan>,
    ttl: Duration,
    look_up: Arc<dyn Fn(K) -> BoxFuture<'static, Plan> + Send + Sync>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Plans<K> {
    pub(super) fn new<F>(ttl: Duration, look_up: impl Fn(K) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Plan> + Send + 'static,
    {
        let known = Cache::builder().max_entries(KNOWN).name("plans").build();
        Self { known, ttl, look_up: Arc::new(move |key| Box::pin(look_up(key))) }
    }

    /// The limits of a key; `None` for the limiter's own.
    pub(super) async fn of(&self, key: K) -> Plan {
        // A long key is known by a short one, and looked up as it is.
        let known = bounded(key.clone());
        let look_up = self.look_up.clone();
        self.known.get_or_set_with(&known, self.ttl, move || look_up(key)).await
    }
}
