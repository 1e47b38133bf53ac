//! Candidates behind a common trait: each cache's implementation of `get` and `set_ex`.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::{task::JoinHandle, time::Instant};

pub(crate) type Value = Arc<u64>;
type Hasher = foldhash::fast::RandomState;

pub(crate) const NAMES: [&str; 6] =
    ["DashMap", "DashMap + now", "moka", "quick_cache", "retainer", "fleeting"];

#[allow(async_fn_in_trait)] // Only used with static dispatch.
pub(crate) trait Candidate: Clone + Send + Sync + 'static {
    fn new(entries: usize) -> Self;
    fn get(&self, key: &str) -> impl Future<Output = Option<Value>> + Send;
    fn set_ex(&self, key: String, value: Value, ttl: Duration) -> impl Future<Output = ()> + Send;
    /// Returns the number of resident entries, as reported by the cache.
    fn len(&self) -> impl Future<Output = usize> + Send;
    /// Removes all expired entries.
    fn sweep_all(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Starts the task that a user of the cache needs to remove expired entries, if any.
    fn sweeper(&self) -> Option<JoinHandle<()>> {
        None
    }
}

/// DashMap without a clock and deadlines: the baseline.
#[derive(Clone)]
pub(crate) struct Bare(Arc<DashMap<String, Value, Hasher>>);

impl Candidate for Bare {
    fn new(_: usize) -> Self {
        Self(Arc::new(DashMap::with_hasher_and_shard_amount(Hasher::default(), 64)))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).map(|value| value.clone())
    }

    async fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.0.insert(key, value);
    }

    async fn len(&self) -> usize {
        self.0.len()
    }
}

/// A handwritten cache: DashMap with a deadline in each value.
#[derive(Clone)]
pub(crate) struct ByHand(Arc<DashMap<String, (Value, Instant), Hasher>>);

impl Candidate for ByHand {
    fn new(_: usize) -> Self {
        Self(Arc::new(DashMap::with_hasher_and_shard_amount(Hasher::default(), 64)))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        let entry = self.0.get(key)?;
        (Instant::now() < entry.1).then(|| entry.0.clone())
    }

    async fn set_ex(&self, key: String, value: Value, ttl: Duration) {
        self.0.insert(key, (value, Instant::now() + ttl));
    }

    async fn len(&self) -> usize {
        self.0.len()
    }

    async fn sweep_all(&self) {
        let now = Instant::now();
        self.0.retain(|_, (_, deadline)| now < *deadline);
    }

    fn sweeper(&self) -> Option<JoinHandle<()>> {
        let map = self.0.clone();
        Some(tokio::spawn(async move {
            let mut interval = tokio::time::interval(Duration::from_millis(100));
            loop {
                interval.tick().await;
                let now = Instant::now();
                map.retain(|_, (_, deadline)| now < *deadline);
            }
        }))
    }
}

#[derive(Clone)]
pub(crate) struct Moka(moka::future::Cache<String, (Value, Duration)>);

struct PerEntry;

impl moka::Expiry<String, (Value, Duration)> for PerEntry {
    fn expire_after_create(
        &self,
        _: &String,
        value: &(Value, Duration),
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(value.1)
    }

    fn expire_after_update(
        &self,
        _: &String,
        value: &(Value, Duration),
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(value.1)
    }
}

impl Candidate for Moka {
    fn new(_: usize) -> Self {
        Self(moka::future::Cache::builder().expire_after(PerEntry).build())
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).await.map(|(value, _)| value)
    }

    async fn set_ex(&self, key: String, value: Value, ttl: Duration) {
        self.0.insert(key, (value, ttl)).await;
    }

    async fn len(&self) -> usize {
        self.0.entry_count() as usize
    }

    async fn sweep_all(&self) {
        self.0.run_pending_tasks().await;
    }

    /// moka removes expired entries only during other calls, so a task has to run its pending tasks.
    fn sweeper(&self) -> Option<JoinHandle<()>> {
        let cache = self.0.clone();
        Some(tokio::spawn(async move {
            let mut interval = tokio::time::interval(Duration::from_millis(100));
            loop {
                interval.tick().await;
                cache.run_pending_tasks().await;
            }
        }))
    }
}

/// quick_cache, which has no TTL.
#[derive(Clone)]
pub(crate) struct QuickCache(Arc<quick_cache::sync::Cache<String, Value>>);

impl Candidate for QuickCache {
    fn new(entries: usize) -> Self {
        Self(Arc::new(quick_cache::sync::Cache::new(2 * entries)))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key)
    }

    async fn set_ex(&self, key: String, value: Value, _: Duration) {
        self.0.insert(key, value);
    }

    async fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Clone)]
pub(crate) struct Retainer(Arc<retainer::Cache<String, Value>>);

impl Candidate for Retainer {
    fn new(_: usize) -> Self {
        Self(Arc::new(retainer::Cache::new()))
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).await.map(|guard| guard.value().clone())
    }

    async fn set_ex(&self, key: String, value: Value, ttl: Duration) {
        self.0.insert(key, value, ttl).await;
    }

    async fn len(&self) -> usize {
        self.0.len().await
    }

    fn sweeper(&self) -> Option<JoinHandle<()>> {
        let cache = self.0.clone();
        Some(tokio::spawn(async move {
            cache.monitor(20, 0.25, Duration::from_millis(100)).await;
        }))
    }
}

#[derive(Clone)]
pub(crate) struct Fleeting(pub(crate) fleeting::Cache<String, Value>);

impl Candidate for Fleeting {
    fn new(_: usize) -> Self {
        Self(fleeting::Cache::new())
    }

    async fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).await
    }

    async fn set_ex(&self, key: String, value: Value, ttl: Duration) {
        self.0.set_ex(key, value, ttl).await;
    }

    async fn len(&self) -> usize {
        self.0.len()
    }

    /// Sweeps ten times: each sweep continues where the last one stopped, so that all entries are covered.
    async fn sweep_all(&self) {
        for _ in 0..10 {
            self.0.sweep().await;
        }
    }
}
