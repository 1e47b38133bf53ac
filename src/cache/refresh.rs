//! Background refreshes of stale values and of values close to their deadline.

use std::{
    fmt::Debug,
    future::{pending, poll_fn},
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    Cache, WeakCache,
    freshness::TimeToLive,
    load_guard::{FailedRefresh, LoadGuard},
    reentrancy::ReentrancyScope,
};
use crate::engine::{
    clock::Deadline,
    panics,
    tasks::{TaskFuture, spawn},
    to_key::ToKey,
};

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
        let location = self.shared.store.locate(key);
        let failures = self.freshness_policy.failures.as_ref();
        if failures.is_some_and(|failures| !failures.may_retry::<K, _>(location.hash(), key)) {
            return;
        }
        let Some(flight) = self.shared.store.lead(location, key, || key.to_key(), seen_deadline)
        else {
            return;
        };
        let load_guard = self.load_guard(location, flight, true);
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

/// Returns whether this context has a runtime with a timer. There is no other way to learn it than by a panic.
fn has_timer() -> bool {
    Handle::try_current().is_ok() && catch_unwind(|| drop(sleep(Duration::ZERO))).is_ok()
}

/// Waits for `future` until the time limit of a refresh, by a timer of the caller: that of a runtime that is not driven
/// never elapses. Returns `None` if it elapses first.
pub(super) async fn within_timeout<F: Future>(future: F) -> Option<F::Output> {
    if has_timer() {
        return timeout(REFRESH_TIMEOUT, future).await.ok();
    }
    let (mut future, mut sleep) = (pin!(future), pin!(sleep_on_thread(REFRESH_TIMEOUT)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Waits for this time by a thread, which ends with the future. Never ends if there is none to be had.
async fn sleep_on_thread(duration: Duration) {
    let (elapsed, wait) = oneshot::channel();
    let (_cancels, is_cancelled) = mpsc::channel::<()>();
    let sleep = move || {
        if let Err(RecvTimeoutError::Timeout) = is_cancelled.recv_timeout(duration) {
            let _ = elapsed.send(());
        }
    };
    let thread = thread::Builder::new().name("fleeting-timeout".to_owned()).spawn(sleep);
    if thread.is_err() || wait.await.is_err() {
        pending::<()>().await;
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn thread_sleeps_without_a_runtime_and_ends_with_its_future() {
        let start = std::time::Instant::now();
        let mut sleep = tokio_test::task::spawn(sleep_on_thread(Duration::from_millis(20)));
        assert!(sleep.poll().is_pending());
        while !sleep.is_woken() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(sleep.poll().is_ready());
        assert!(start.elapsed() >= Duration::from_millis(20));
        let hour = Duration::from_secs(3_600);
        let mut sleep = tokio_test::task::spawn(sleep_on_thread(hour));
        assert!(sleep.poll().is_pending());
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
            let names = tasks.filter_map(|task| {
                std::fs::read_to_string(task.expect("it is readable").path().join("comm")).ok()
            });
            names.filter(|name| name.trim() == "fleeting-timeou").count()
        };
        for (count, sleep) in [(1, Some(sleep)), (0, None)] {
            while threads() != count {
                thread::sleep(Duration::from_millis(1));
            }
            drop(sleep);
        }
    }
}
