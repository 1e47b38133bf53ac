//! Background refreshes of stale values and of values close to their deadline.

use std::{
    fmt::Debug,
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, sleep, timeout},
};

use super::{
    Cache, WeakCache,
    freshness::TimeToLive,
    load_guard::{FailedRefresh, LoadGuard},
    reentrancy::ReentrancyScope,
};
use crate::engine::{clock::Deadline, panics, to_key::ToKey};

/// Time limit of a background refresh. It has no caller who could cancel it, so without a limit a stuck loader would
/// block all later refreshes of its key. A caller that waits for a refresh waits for as long, by a timer of its own.
pub(crate) const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Starts to reload a value that was seen with the deadline `seen_deadline`, in the background on a [driven
    /// runtime](Self::driven_runtime). Does nothing if a load of the key is running or has replaced the value since, or
    /// if a recent failure's backoff has not ended.
    pub(super) fn spawn_refresh<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
        seen_deadline: Deadline,
    ) where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        if self.freshness_policy.failures.as_ref().is_some_and(|failures| !failures.may_retry(key))
        {
            return;
        }
        let location = self.shared.store.locate(key);
        let Some(flight) = self.shared.store.lead(location, key, || key.to_key(), seen_deadline)
        else {
            return;
        };
        let load_guard = self.load_guard(location, flight, true);
        let (weak_cache, key) = (self.downgrade(), key.to_key());
        self.driven_runtime().spawn(run_refresh(weak_cache, load_guard, key, ttl, loader));
    }

    /// Returns a runtime, with a timer if possible, for a task that callers may wait for.
    ///
    /// A multi-thread runtime drives itself, but that of the cache may have no timer. A `current_thread` runtime is
    /// driven only during `block_on`, and that of the cache perhaps never again, so the caller's runtime is preferred to
    /// it.
    pub(super) fn driven_runtime(&self) -> Handle {
        let own = &self.shared.runtime;
        if own.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return own.clone();
        }
        let current = Handle::try_current().ok().filter(|_| has_timer());
        current.unwrap_or_else(|| own.clone())
    }

    fn report_failed_refresh(&self, key: &K, error: &dyn Debug) {
        self.freshness_policy.report_failed_refresh(self.shared.name(), key, error);
    }
}

/// Returns whether the runtime of this context has a timer. There is no other way to learn it.
pub(super) fn has_timer() -> bool {
    catch_unwind(|| drop(sleep(Duration::ZERO))).is_ok()
}

/// Runs a loader in the background. It holds the cache weakly, so that a refresh does not keep it alive.
async fn run_refresh<K, V, S, E, F, Fut>(
    weak_cache: WeakCache<K, V, S>,
    load_guard: LoadGuard<K, V, S>,
    key: K,
    ttl: impl TimeToLive<V> + Send + 'static,
    loader: F,
) where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
    E: Debug + Send + Sync + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<V, E>> + Send + 'static,
{
    // The flight was created for this refresh, so its write version was 0 at the start. A write increases it and takes
    // precedence over the load.
    let started_at_version = 0;
    let start = Instant::now();
    let load = ReentrancyScope::run(&load_guard.flight, async move {
        let value = loader().await?;
        let ttl = ttl.of(&value);
        Ok::<_, E>((value, ttl))
    });
    // Without a timer, no limit: a stuck loader then blocks the later loads of its key, but all others proceed.
    let limited = async {
        match has_timer() {
            true => timeout(REFRESH_TIMEOUT, load).await,
            false => Ok(load.await),
        }
    };
    let loaded = panics::caught(limited).await;
    let Some(cache) = weak_cache.upgrade() else { return };
    cache.freshness_policy.loads.record(start.elapsed(), !matches!(loaded, Ok(Ok(Ok(_)))));
    let loaded = match loaded {
        Ok(Ok(loaded)) => Ok(loaded),
        Ok(Err(_)) => {
            cache.record_failure(&load_guard.flight, started_at_version, key.clone(), None);
            drop(load_guard);
            return cache.report_failed_refresh(
                &key,
                &format_args!(
                    "timed out after {REFRESH_TIMEOUT:?}, the timeout of background refreshes"
                ),
            );
        }
        Err(panic) => Err(panic),
    };
    // `Clone`, `Hash`, `Eq` and `Drop` of keys and values are user code too and may panic.
    let loaded = loaded.and_then(|loaded| {
        let store_loaded = || {
            loaded.map(|(value, ttl)| {
                cache.store_loaded(
                    &load_guard.flight,
                    started_at_version,
                    key.clone(),
                    value.clone(),
                    ttl,
                );
                value
            })
        };
        catch_unwind(AssertUnwindSafe(store_loaded))
    });
    match loaded {
        Ok(Ok(value)) => {
            load_guard.finish(started_at_version, Ok(value));
            if cache.has_deferred_evictions() {
                cache.finish_evictions(()).await;
            }
        }
        Ok(Err(error)) => {
            let error = Arc::new(error);
            cache.record_failure(
                &load_guard.flight,
                started_at_version,
                key.clone(),
                Some(error.clone()),
            );
            load_guard.finish(started_at_version, Err(Arc::new(FailedRefresh)));
            cache.report_failed_refresh(&key, &*error);
        }
        Err(panic) => {
            cache.record_failure(&load_guard.flight, started_at_version, key.clone(), None);
            drop(load_guard);
            cache.report_failed_refresh(
                &key,
                &format_args!("panicked: {}", panics::message(&*panic)),
            );
        }
    }
}
