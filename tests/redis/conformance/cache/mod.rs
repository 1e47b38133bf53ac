//! Verbs and events of the embedded `Cache` and of `redis::Cache`.

mod events;
mod verbs;

use std::{future::ready, sync::Arc, time::Duration};

use fleeting::{Event, Lagged, Ttl, When, redis};
use futures::{FutureExt, Stream, StreamExt, stream};
use tokio::time::Instant;

use super::{client, fresh};
use crate::clock::ms;

type OnRedisCache = redis::Cache<String, u64>;
type EmbeddedCache = fleeting::Cache<String, u64>;

on_both! {
    /// Verbs that need no more than their arguments.
    trait Verbs for EmbeddedCache, OnRedisCache {
        fn get(&self, key: &str) -> Option<u64>;
        fn get_ex(&self, key: &str, ttl: Duration) -> Option<u64>;
        fn set(&self, key: String, value: u64) -> Option<u64>;
        fn set_ex(&self, key: String, value: u64, ttl: Duration) -> Option<u64>;
        fn set_nx(&self, key: String, value: u64, ttl: Option<Duration>) -> bool;
        fn set_keep_ttl(&self, key: String, value: u64) -> Option<u64>;
        fn remove(&self, key: &str) -> Option<u64>;
        fn contains_key(&self, key: &str) -> bool;
        fn ttl(&self, key: &str) -> Ttl;
        fn expire(&self, key: &str, ttl: Duration) -> bool;
        fn expire_if(&self, key: &str, ttl: Duration, when: When) -> bool;
        fn expire_at(&self, key: &str, deadline: Instant) -> bool;
        fn extend(&self, key: &str, by: Duration) -> bool;
        fn persist(&self, key: &str) -> bool;
        fn expire_now(&self, key: &str) -> Option<u64>;
        fn remove_tag(&self, tag: &str) -> ();
        fn clear(&self) -> ();
    }
}

/// All methods of a cache that the cases call.
trait Cache: Verbs {
    type Events: EventStream;

    fn set_tagged<const N: usize>(
        &self,
        key: String,
        value: u64,
        ttl: Duration,
        tags: [&str; N],
    ) -> impl Future<Output = Option<u64>>;
    fn update<R: Send>(
        &self,
        key: &str,
        change: impl FnMut(&mut u64) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;
    fn iter(&self) -> impl Stream<Item = (String, u64)>;
    fn keys(&self) -> impl Stream<Item = String>;
    fn values(&self) -> impl Stream<Item = u64>;
    fn len(&self) -> impl Future<Output = usize>;
    fn is_empty(&self) -> impl Future<Output = bool>;
    fn events(&self) -> impl Future<Output = Self::Events>;
    fn shutdown(&self) -> impl Future<Output = ()>;
    fn hits_and_misses(&self) -> (u64, u64);
}

/// Subscription of a cache, which ends with the cache.
trait EventStream: Stream<Item = Result<Arc<Event<String, u64>>, Lagged>> + Unpin {
    async fn recv(&mut self) -> Option<Self::Item>;
}

impl EventStream for fleeting::Events<String, u64> {
    async fn recv(&mut self) -> Option<Self::Item> {
        self.recv().await
    }
}

impl EventStream for redis::Events<String, u64> {
    async fn recv(&mut self) -> Option<Self::Item> {
        self.recv().await
    }
}

impl Cache for EmbeddedCache {
    type Events = fleeting::Events<String, u64>;

    fn set_tagged<const N: usize>(
        &self,
        key: String,
        value: u64,
        ttl: Duration,
        tags: [&str; N],
    ) -> impl Future<Output = Option<u64>> {
        self.set_tagged(key, value, ttl, tags)
    }

    fn update<R: Send>(
        &self,
        key: &str,
        change: impl FnMut(&mut u64) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send {
        self.update(key, change)
    }

    fn iter(&self) -> impl Stream<Item = (String, u64)> {
        stream::iter(self.iter())
    }

    fn keys(&self) -> impl Stream<Item = String> {
        stream::iter(self.keys())
    }

    fn values(&self) -> impl Stream<Item = u64> {
        stream::iter(self.values())
    }

    fn len(&self) -> impl Future<Output = usize> {
        ready(self.len())
    }

    fn is_empty(&self) -> impl Future<Output = bool> {
        ready(self.is_empty())
    }

    fn events(&self) -> impl Future<Output = Self::Events> {
        ready(self.events())
    }

    fn shutdown(&self) -> impl Future<Output = ()> {
        self.shutdown()
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        (self.stats().hits, self.stats().misses)
    }
}

impl Cache for OnRedisCache {
    type Events = redis::Events<String, u64>;

    fn set_tagged<const N: usize>(
        &self,
        key: String,
        value: u64,
        ttl: Duration,
        tags: [&str; N],
    ) -> impl Future<Output = Option<u64>> {
        self.set_tagged(key, value, ttl, tags).map(Result::unwrap)
    }

    fn update<R: Send>(
        &self,
        key: &str,
        change: impl FnMut(&mut u64) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send {
        self.update(key, change).map(Result::unwrap)
    }

    fn iter(&self) -> impl Stream<Item = (String, u64)> {
        self.iter().map(Result::unwrap)
    }

    fn keys(&self) -> impl Stream<Item = String> {
        self.keys().map(Result::unwrap)
    }

    fn values(&self) -> impl Stream<Item = u64> {
        self.values().map(Result::unwrap)
    }

    fn len(&self) -> impl Future<Output = usize> {
        self.len().map(Result::unwrap)
    }

    fn is_empty(&self) -> impl Future<Output = bool> {
        self.is_empty().map(Result::unwrap)
    }

    fn events(&self) -> impl Future<Output = Self::Events> {
        self.events().map(Result::unwrap)
    }

    fn shutdown(&self) -> impl Future<Output = ()> {
        self.shutdown()
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        (self.stats().hits, self.stats().misses)
    }
}

/// Kind of caches that the cases run on.
trait Backend {
    type Cache: Cache;

    /// Returns an empty cache without a default TTL.
    async fn cache(case: &str) -> Self::Cache;

    async fn cache_with_ttl(case: &str, ttl: Duration) -> Self::Cache;
}

struct Embedded;

impl Backend for Embedded {
    type Cache = EmbeddedCache;

    async fn cache(case: &str) -> EmbeddedCache {
        fleeting::Cache::builder().name(case).event_capacity(16).build()
    }

    async fn cache_with_ttl(case: &str, ttl: Duration) -> EmbeddedCache {
        fleeting::Cache::builder().name(case).time_to_live(ttl).build()
    }
}

struct OnRedis;

impl Backend for OnRedis {
    type Cache = OnRedisCache;

    async fn cache(case: &str) -> OnRedisCache {
        redis::Cache::new(&client().await, &fresh(case)).unwrap()
    }

    async fn cache_with_ttl(case: &str, ttl: Duration) -> OnRedisCache {
        let name = fresh(case);
        redis::Cache::builder(&client().await, &name).time_to_live(ttl).build().unwrap()
    }
}

/// Scripts of caches with events differ from those of caches without.
struct OnRedisWithEvents;

impl OnRedisWithEvents {
    async fn builder(case: &str) -> redis::CacheBuilder<String, u64> {
        redis::Cache::builder(&client().await, &fresh(case))
            .events(HOUR)
            .event_capacity(16)
            .poll_every(ms(20))
    }
}

impl Backend for OnRedisWithEvents {
    type Cache = OnRedisCache;

    async fn cache(case: &str) -> OnRedisCache {
        Self::builder(case).await.build().unwrap()
    }

    async fn cache_with_ttl(case: &str, ttl: Duration) -> OnRedisCache {
        Self::builder(case).await.time_to_live(ttl).build().unwrap()
    }
}

/// Long enough that no value expires during a slow test.
const HOUR: Duration = Duration::from_secs(3_600);

fn short() -> Duration {
    ms(150)
}
