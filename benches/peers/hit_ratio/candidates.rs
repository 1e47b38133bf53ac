//! Caches of other crates, used through their public APIs.

use moka::policy::EvictionPolicy;

use crate::{
    replay::Candidate,
    scans::{self, Scannable, Setup},
    traces::Request,
};

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

impl Scannable for Moka {
    fn set_up(setup: Setup) -> Self {
        let builder = moka::future::Cache::builder().max_capacity(setup.limit());
        Self(match setup.is_weighed {
            true => builder.weigher(|key, _| scans::weight(*key)).build(),
            false => builder.build(),
        })
    }

    async fn has(&mut self, key: u32) -> bool {
        self.0.contains_key(&key)
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

pub(crate) struct QuickCache(quick_cache::sync::Cache<u32, u32, QuickWeighter>);

#[derive(Clone)]
struct QuickWeighter {
    is_weighed: bool,
}

impl quick_cache::Weighter<u32, u32> for QuickWeighter {
    fn weight(&self, key: &u32, _: &u32) -> u64 {
        if self.is_weighed { u64::from(scans::weight(*key)) } else { 1 }
    }
}

impl Candidate for QuickCache {
    fn new(capacity: usize) -> Self {
        Self(quick_cache::sync::Cache::with_weighter(
            capacity,
            capacity as u64,
            QuickWeighter { is_weighed: false },
        ))
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(&key)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.0.insert(request.key, deadline);
    }
}

impl Scannable for QuickCache {
    fn set_up(setup: Setup) -> Self {
        let weighter = QuickWeighter { is_weighed: setup.is_weighed };
        Self(quick_cache::sync::Cache::with_weighter(setup.bound as usize, setup.limit(), weighter))
    }

    async fn has(&mut self, key: u32) -> bool {
        self.0.contains_key(&key)
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
