//! Weak handle to a cache.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Cache, SyncCache, freshness_policy::FreshnessPolicy};
use crate::engine::{hasher::DefaultHasher, shared_state::SharedState};

/// Handle that does not keep its cache alive, for callbacks, tasks and values that the cache itself owns. Created by
/// [`Cache::downgrade`].
///
/// A callback that reloads expired values:
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// # async fn load(_: &str) -> u64 { 43 }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let rates = Cache::builder().time_to_live(Duration::from_secs(30)).build();
/// rates.set("EUR", 42).await;
///
/// let weak = rates.downgrade();
/// let refreshing = rates.on_expired(async move |event| {
///     let rate = load(event.key).await;
///     // Upgraded after the load, so that a slow load does not keep the cache alive.
///     let Some(rates) = weak.upgrade() else { return };
///     rates.set(event.key, rate).await;
/// });
///
/// tokio::time::sleep(Duration::from_secs(40)).await;
/// assert_eq!(rates.get("EUR").await, Some(43));
///
/// drop(rates);
/// refreshing.await.unwrap(); // the callback did not keep the cache alive
/// # }
/// ```
///
/// # Lifetime of the cache
///
/// A cache ends when you drop its last [`Cache`] handle. A closure that you give to [`on_expired`](Cache::on_expired)
/// is dropped with the cache. If the closure owns a `Cache` handle to the same cache, neither is ever dropped, and the
/// entries, streams and sweeper stay forever. The same applies to a value that owns a handle to its cache, and to a
/// task that holds one in a loop. Use a `WeakCache` in these places, and [upgrade](WeakCache::upgrade) it only while
/// you need the cache.
///
/// Cloning it is cheap, and it can be used on any thread. While a `WeakCache` exists, a few hundred bytes of the cache
/// stay allocated, but no entries.
///
/// # A task that ends with its cache
///
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let sessions: Cache<String, u64> = Cache::new();
/// let weak = sessions.downgrade();
/// let reporter = tokio::spawn(async move {
///     while let Some(sessions) = weak.upgrade() {
///         println!("{} sessions", sessions.len());
///         // Dropped before the pause, else this task would keep the cache alive.
///         drop(sessions);
///         tokio::time::sleep(Duration::from_secs(10)).await;
///     }
/// });
/// drop(sessions);
/// reporter.await.unwrap();
/// # }
/// ```
pub struct WeakCache<K, V, S = DefaultHasher> {
    freshness_policy: Weak<FreshnessPolicy<K>>,
    shared: Weak<SharedState<K, V, S>>,
}

impl<K, V, S> WeakCache<K, V, S> {
    /// Returns a handle to the cache, or `None` if its last [`Cache`] has been dropped.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set("token", "ada").await;
    /// let weak = sessions.downgrade();
    /// assert_eq!(weak.upgrade().unwrap().get("token").await, Some("ada"));
    ///
    /// drop(sessions);
    /// assert!(weak.upgrade().is_none());
    /// # }
    /// ```
    ///
    /// `None` is returned from the moment at which the last handle is dropped, even while the entries are still being
    /// dropped. The returned handle is like any other: it shares the entries and the current settings of the cache, and
    /// keeps the cache alive, so drop it when you no longer need it. Upgrading costs about as much as cloning a
    /// handle.
    pub fn upgrade(&self) -> Option<Cache<K, V, S>> {
        // `freshness_policy` last: its strong count is the number of handles, so once it is upgraded this call must not
        // fail any more.
        let shared = self.shared.upgrade()?;
        let freshness_policy = self.freshness_policy.upgrade()?;
        Some(Cache { inner: SyncCache { freshness_policy, shared } })
    }
}

impl<K, V, S> Cache<K, V, S> {
    /// Returns a handle that does not keep the cache alive.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::new();
    /// let weak = cache.downgrade();
    /// cache.set("ada", 42).await;
    ///
    /// let again = weak.upgrade().expect("the cache still has a handle");
    /// assert_eq!(again.get("ada").await, Some(42));
    ///
    /// drop((cache, again));
    /// assert!(weak.upgrade().is_none());
    /// # }
    /// ```
    pub fn downgrade(&self) -> WeakCache<K, V, S> {
        self.inner.downgrade()
    }
}

impl<K, V, S> SyncCache<K, V, S> {
    /// Returns a handle that does not keep the cache alive.
    pub(super) fn downgrade(&self) -> WeakCache<K, V, S> {
        WeakCache {
            freshness_policy: Arc::downgrade(&self.freshness_policy),
            shared: Arc::downgrade(&self.shared),
        }
    }
}

impl<K, V, S> Clone for WeakCache<K, V, S> {
    fn clone(&self) -> Self {
        Self { freshness_policy: self.freshness_policy.clone(), shared: self.shared.clone() }
    }
}

impl<K, V, S> fmt::Debug for WeakCache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(WeakCache)")
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn state_kept_by_a_weak_handle_is_below_1000_bytes() {
        assert!(size_of::<SharedState<String, Vec<u8>, DefaultHasher>>() < 1_000);
    }
}
