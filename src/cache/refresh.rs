//! Loads in the background: of what is stale, or will be.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::{
    Cache, WeakCache, freshness::TimeToLive, load_guard::LoadGuard, reentrancy::ReentrancyScope,
};
use crate::engine::{clock::Deadline, panics, store::Failure, to_key::ToKey};

/// A refresh that takes longer has failed: nobody waits for it, and nobody else would end it.
const LONGEST: Duration = Duration::from_secs(60);

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Loads a value anew that dies at `seen`, in the background, by the cache's own runtime, unless somebody does
    /// already, or has.
    pub(super) fn refresh<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
        seen: Deadline,
    ) where
        Q: ToKey<K> + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        if self.freshness_policy.failures.as_ref().is_some_and(|kept| !kept.may_retry(key)) {
            return;
        }
        let place = self.shared.store.place(key);
        let Some(flight) = self.shared.store.lead(place, key, || key.to_key(), seen) else {
            return;
        };
        let guard = self.guard(place, flight, true);
        let (weak, key) = (self.downgrade(), key.to_key());
        self.shared.runtime.spawn(refreshed(weak, guard, key, ttl, loader));
    }
}

/// A load in the background. It keeps no cache alive.
async fn refreshed<K, V, S, E, F, Fut>(
    weak: WeakCache<K, V, S>,
    guard: LoadGuard<K, V, S>,
    key: K,
    ttl: impl TimeToLive<V> + Send + 'static,
    loader: F,
) where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<V, E>> + Send + 'static,
{
    // It is nobody else's before, and a write since then wins.
    let started_at_version = 0;
    let start = Instant::now();
    let load = ReentrancyScope::run(&guard.flight, async move {
        let value = loader().await?;
        let ttl = ttl.of(&value);
        Ok::<_, E>((value, ttl))
    });
    let loaded = panics::caught(timeout(LONGEST, load)).await;
    let Some(cache) = weak.upgrade() else { return };
    cache.freshness_policy.loads.count(start.elapsed(), !matches!(loaded, Ok(Ok(Ok(_)))));
    let loaded = match loaded {
        Ok(Ok(loaded)) => Ok(loaded),
        Ok(Err(_)) => {
            tracing::warn!(cache = cache.shared.name(), "a refresh has taken too long");
            return cache.note_failure(&guard.flight, started_at_version, key, None);
        }
        Err(panic) => Err(panic),
    };
    // What else is the user's may panic too.
    let loaded = loaded.and_then(|loaded| {
        let publish = || {
            loaded.map(|(value, ttl)| {
                cache.publish(&guard.flight, started_at_version, key.clone(), value.clone(), ttl);
                value
            })
        };
        catch_unwind(AssertUnwindSafe(publish))
    });
    match loaded {
        Ok(Ok(value)) => guard.finish(started_at_version, Ok(value)),
        Ok(Err(error)) => {
            let error: Failure = Arc::new(error);
            tracing::warn!(cache = cache.shared.name(), "a refresh has failed");
            cache.note_failure(&guard.flight, started_at_version, key, Some(error.clone()));
            guard.finish(started_at_version, Err(error));
        }
        Err(_) => {
            tracing::error!(cache = cache.shared.name(), "a loader panicked in a refresh");
            cache.note_failure(&guard.flight, started_at_version, key, None);
        }
    }
}
