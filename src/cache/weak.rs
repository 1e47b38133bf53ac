//! A handle that does not keep its cache alive.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Cache, freshness_policy::FreshnessPolicy};
use crate::engine::{hasher::DefaultHasher, state::SharedState};

/// A handle that does not keep its cache alive: for callbacks, tasks and values that a cache itself keeps.
/// Made by [`Cache::downgrade`].
///
/// A cache ends when its last [`Cache`] is dropped. A closure given to
/// [`on_expired`](Cache::on_expired) ends with the cache: where it owns a `Cache` of the same one,
/// neither ever ends, and the values, the streams and the sweeper stay for ever. The same goes for a value
/// that owns its cache, and for a task that waits in a loop. Such a one owns a `WeakCache`, and
/// [upgrades](WeakCache::upgrade) it for as long as it needs the cache.
///
/// It is cheap to clone, and works on any thread. While one is there, the few hundred bytes of the
/// cache's own state stay allocated; entries don't.
///
/// # Examples
///
/// A callback that loads anew what expires:
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
///     // Not before: what it loads for a cache that is gone is dropped.
///     let Some(rates) = weak.upgrade() else { return };
///     rates.set(event.key, rate).await;
/// });
///
/// tokio::time::sleep(Duration::from_secs(40)).await;
/// assert_eq!(rates.get("EUR").await, Some(43));
///
/// drop(rates);
/// refreshing.await.unwrap(); // the callback kept nothing alive
/// # }
/// ```
///
/// A task that ends with the cache it looks after:
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let sessions: Cache<String, u64> = Cache::new();
/// let weak = sessions.downgrade();
/// let reporter = tokio::spawn(async move {
///     // Dropped before the pause, else the cache would last as long as this task.
///     while let Some(sessions) = weak.upgrade() {
///         println!("{} sessions", sessions.len());
///         drop(sessions);
///         tokio::time::sleep(Duration::from_secs(10)).await;
///     }
/// });
/// drop(sessions);
/// reporter.await.unwrap();
/// # }
/// ```
pub struct WeakCache<K, V, S = DefaultHasher> {
    freshness_policy: Weak<FreshnessPolicy<K, S>>,
    shared: Weak<SharedState<K, V, S>>,
}

impl<K, V, S> WeakCache<K, V, S> {
    /// A handle of the cache, with the default TTL that it was built with; `None` from the moment at which
    /// its last [`Cache`] is dropped, also while its values are.
    ///
    /// It costs about as much as a clone. Keep what it returns no longer than you need it: the cache lives
    /// as long.
    pub fn upgrade(&self) -> Option<Cache<K, V, S>> {
        // In this order: who has upgraded `freshness_policy` is a handle to all others, and must not fail any more.
        let shared = self.shared.upgrade()?;
        let freshness_policy = self.freshness_policy.upgrade()?;
        Some(Cache { freshness_policy, shared })
    }
}

impl<K, V, S> Cache<K, V, S> {
    /// A handle that does not keep the cache alive.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::new();
    /// let weak = cache.downgrade();
    /// cache.set("ada", 42).await;
    ///
    /// let again = weak.upgrade().expect("the cache lives");
    /// assert_eq!(again.get("ada").await, Some(42));
    ///
    /// drop((cache, again));
    /// assert!(weak.upgrade().is_none());
    /// # }
    /// ```
    pub fn downgrade(&self) -> WeakCache<K, V, S> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_weak_handle_keeps_is_small() {
        assert!(size_of::<SharedState<String, Vec<u8>, DefaultHasher>>() < 1_000);
    }
}
