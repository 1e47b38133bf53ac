//! Loads of keys that have a value: the run of refreshes in the background, what waiters get if one fails, and
//! [`Cache::refresh_with`].

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, timeout},
};

use super::{
    join::{LoadCall, LoadGuard},
    timeout::{REFRESH_TIMEOUT, has_timer},
    ttl::TimeToLive,
};
use crate::{
    cache::{Cache, SyncCache, WeakCache, reentrancy::ReentrancyScope},
    engine::{
        coop, panics,
        store::{Lookup, Seen},
        tasks::{TaskFuture, spawn},
        to_key::ToKey,
    },
};

/// Outcome of a flight whose background refresh failed. No caller's error type is this one, so callers that wait for
/// the flight continue with their own loaders: the failure is reported to the hook instead.
struct FailedRefresh;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Loads `key` even if it has a live value, replaces that value, and returns the new one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let rates: Cache<String, u32> = Cache::new();
    /// let hour = Duration::from_secs(3_600);
    /// rates.set_ex("EUR".to_owned(), 42, hour).await;
    /// assert_eq!(rates.refresh_with("EUR", hour, async || 43).await, 43);
    /// assert_eq!(rates.get("EUR").await, Some(43));
    /// # }
    /// ```
    ///
    /// Other calls return the live value until the load ends. Concurrent calls of the key share one load. If a load of
    /// the key is already running, the call waits for that load, whose value may have been read from the source before
    /// this call began. To get a value that was read after a change of the source, [`remove`](Cache::remove) the key
    /// first.
    ///
    /// The new value keeps the tags of the value that it replaces, unless `ttl` is a [`Tagged`](crate::Tagged).
    ///
    /// `loader` may borrow, because it runs only inside this call. Errors that
    /// [`negative_ttl`](crate::Builder::negative_ttl) keeps do not prevent the load. Otherwise the same as
    /// [`get_or_set_with`](Cache::get_or_set_with): a write during the load takes precedence, and a waiter continues
    /// with its own loader if the load that it waits for is cancelled, panics or fails.
    ///
    /// # Panics
    ///
    /// Panics if the loader that this call runs does. The panic does not reach other callers, and the old value stays.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a cancelled call leaves the old value in the cache.
    #[doc(alias = "refresh")]
    #[doc(alias = "reload")]
    pub async fn refresh_with<Q, F, Fut>(&self, key: &Q, ttl: impl TimeToLive<V>, loader: F) -> V
    where
        Q: ToKey<K> + ?Sized,
        F: FnOnce() -> Fut,
        Fut: Future<Output = V>,
    {
        coop::proceed().await;
        // Boxed, because the future of a load is several times as large as the value.
        let refresh = Box::pin(async move {
            let mut call = LoadCall::refresh(self.inner.shared.store.locate(key));
            loop {
                match self.inner.join_flight(&mut call, key).await {
                    Lookup::Leader(load_guard) => {
                        let loader = async move || Ok::<_, Infallible>(loader().await);
                        return match self.inner.run_loader(load_guard, key, ttl, loader).await {
                            Ok((value, _)) => value,
                            Err(never) => match *never {},
                        };
                    }
                    Lookup::Nested => return loader().await,
                    Lookup::Loaded(value) => return value,
                    // A value that another caller found is not a load.
                    Lookup::Live(_) | Lookup::Failed(_) | Lookup::Again => {}
                }
            }
        });
        refresh.await
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Starts to reload the value that was `seen`, in the background on a [driven runtime](Self::driven_runtime). Does
    /// nothing if a load of the key is running or has replaced the value since, or if a recent failure's backoff has
    /// not ended.
    pub(super) fn spawn_refresh<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
        seen: Seen,
    ) where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let location = self.shared.store.locate(key);
        let failed_loads = self.shared.failed_loads.as_ref();
        if failed_loads.is_some_and(|failed| !failed.may_retry::<K, _>(location.hash(), key)) {
            return;
        }
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        let Some(member) = store.lead_refresh(location, key, || key.to_key(), seen, clock) else {
            return;
        };
        let mut load_guard = self.load_guard(location, member, true);
        load_guard.begin_load(&ttl);
        let (weak_cache, key) = (self.downgrade(), key.to_key());
        let refresh = Box::pin(run_refresh(weak_cache, load_guard, key, ttl, loader));
        self.spawn_on_driven_runtime(refresh);
    }

    fn spawn_on_driven_runtime(&self, refresh: TaskFuture) {
        let refresh = Arc::new(Mutex::new(Some(refresh)));
        let spawn = |runtime: &Handle| {
            spawn(runtime, "refresh", self.shared.name(), Box::pin(run_taken(refresh.clone())))
        };
        // A runtime that has shut down drops its tasks at once.
        if spawn(&self.driven_runtime()).is_finished()
            && let Ok(runtime) = Handle::try_current()
        {
            spawn(&runtime);
        }
    }

    /// Returns a runtime, with a timer if possible, for a task that callers may wait for.
    ///
    /// A multi-thread runtime drives itself, but that of the cache may have no timer. A `current_thread` runtime is
    /// driven only during `block_on`, and that of the cache perhaps never again, so the caller's runtime is preferred
    /// to it.
    fn driven_runtime(&self) -> Handle {
        let own = &self.shared.runtime;
        if own.runtime_flavor() != RuntimeFlavor::CurrentThread || self.shared.runs_in_background()
        {
            return own.clone();
        }
        let current = Handle::try_current().ok().filter(|_| has_timer());
        current.unwrap_or_else(|| own.clone())
    }

    fn report_failed_refresh(&self, key: &K, error: &dyn Debug) {
        self.freshness_policy.report_failed_refresh(self.shared.name(), key, error);
    }
}

/// Runs a refresh, unless another task has taken it.
async fn run_taken(refresh: Arc<Mutex<Option<TaskFuture>>>) {
    let taken = refresh.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(refresh);
    if let Some(refresh) = taken {
        refresh.await;
    }
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
    let start = Instant::now();
    let flight = &load_guard.flight;
    // Without a timer, no limit: a stuck loader then blocks the later loads of its key, but all others proceed.
    let limited = async move {
        let load = pin!(async move {
            let value = loader().await?;
            let ttl = ttl.with_tags(&value);
            Ok::<_, E>((value, ttl))
        });
        let load = ReentrancyScope::run(flight, load);
        match has_timer() {
            true => timeout(REFRESH_TIMEOUT, load).await.ok(),
            false => Some(load.await),
        }
    };
    let loaded = panics::caught(limited).await;
    let Some(Cache { inner: cache }) = weak_cache.upgrade() else { return };
    cache.freshness_policy.loads.record(start.elapsed(), !matches!(loaded, Ok(Some(Ok(_)))));
    // `Clone`, `Hash`, `Eq` and `Drop` of keys and values are user code too and may panic.
    let stored = loaded.and_then(|loaded| {
        let store = |(value, ttl): (V, _)| {
            cache.store_loaded(&load_guard, key.clone(), &value, ttl);
            value
        };
        catch_unwind(AssertUnwindSafe(|| loaded.map(|loaded| loaded.map(store))))
    });
    let fail = |error| cache.record_failure(&load_guard.flight, key.clone(), error);
    match stored {
        Ok(Some(Ok(value))) => {
            load_guard.finish(Lookup::Loaded(value));
            cache.finish(()).await;
        }
        Ok(Some(Err(error))) => {
            let error = Arc::new(error);
            fail(Some(error.clone()));
            load_guard.finish(Lookup::Failed(Arc::new(FailedRefresh)));
            cache.report_failed_refresh(&key, &*error);
        }
        Ok(None) => {
            fail(None);
            drop(load_guard);
            let limit = "the timeout of background refreshes";
            let text = format_args!("timed out after {REFRESH_TIMEOUT:?}, {limit}");
            cache.report_failed_refresh(&key, &text);
        }
        Err(panic) => {
            fail(None);
            drop(load_guard);
            let text = format_args!("panicked: {}", panics::message(&*panic));
            cache.report_failed_refresh(&key, &text);
        }
    }
}
