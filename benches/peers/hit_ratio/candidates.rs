//! Caches of other crates, used through their public APIs.

use moka::policy::EvictionPolicy;

use crate::{replay::Candidate, traces::Request};

/// moka with its default policy, TinyLFU.
pub(crate) struct Moka(moka::future::Cache<u32, u32>);

impl Candidate for Moka {
    fn new(capacity: usize) -> Self {
        Self(moka::future::Cache::new(capacity as u64))
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(&key).await
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.0.insert(request.key, deadline).await;
    }

    async fn settle(&mut self) {
        self.0.run_pending_tasks().await;
    }
}

pub(crate) struct MokaLru(Moka);

impl Candidate for MokaLru {
    fn new(capacity: usize) -> Self {
        let builder = moka::future::Cache::builder().max_capacity(capacity as u64);
        Self(Moka(builder.eviction_policy(EvictionPolicy::lru()).build()))
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(key).await
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.0.set(request, deadline).await;
    }

    async fn settle(&mut self) {
        self.0.settle().await;
    }
}

pub(crate) struct QuickCache(quick_cache::sync::Cache<u32, u32>);

impl Candidate for QuickCache {
    fn new(capacity: usize) -> Self {
        Self(quick_cache::sync::Cache::new(capacity))
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(&key)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.0.insert(request.key, deadline);
    }
}

/// foyer's in-memory cache with its default policy, w-TinyLFU.
pub(crate) struct Foyer(foyer_memory::Cache<u32, u32>);

impl Candidate for Foyer {
    fn new(capacity: usize) -> Self {
        Self(foyer_memory::CacheBuilder::new(capacity).build())
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(&key).map(|entry| *entry)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.0.insert(request.key, deadline);
    }
}
