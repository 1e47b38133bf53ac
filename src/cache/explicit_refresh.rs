//! Explicit refresh of a key: [`Cache::refresh_with`].

use std::{
    convert::Infallible,
    hash::{BuildHasher, Hash},
};

use super::{Cache, freshness::TimeToLive, reentrancy::ReentrancyScope};
use crate::engine::{
    clock::{Clock, Deadline, Now, Tick},
    coop,
    store::{LoadLookup, WaitOutcome},
    to_key::ToKey,
};

/// Clock under which every value has expired. With it, a lookup joins the flight of a key that has a live value.
struct AllExpired<'a>(&'a Clock);

impl Now for AllExpired<'_> {
    fn is_expired(&self, _deadline: Deadline) -> bool {
        true
    }

    fn tick(&self) -> Tick {
        self.0.tick()
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Loads `key` even if it has a live value, replaces that value, and returns the new one.
    ///
    /// Other calls return the live value until the load ends. Concurrent calls of the key share one load. If a load of
    /// the key is already running, the call waits for that load, whose value may have been read from the source before
    /// this call began. To get a value that was read after a change of the source, [`remove`](Cache::remove) the key
    /// first.
    ///
    /// `loader` may borrow, because it runs only inside this call. Errors that
    /// [`negative_ttl`](super::Builder::negative_ttl) keeps do not prevent the load. Otherwise the same as
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
    ///
    /// # Examples
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
    #[doc(alias = "refresh")]
    #[doc(alias = "reload")]
    pub async fn refresh_with<Q, F, Fut>(&self, key: &Q, ttl: impl TimeToLive<V>, loader: F) -> V
    where
        Q: ToKey<K> + ?Sized,
        F: FnOnce() -> Fut,
        Fut: Future<Output = V>,
    {
        coop::proceed().await;
        let store = &self.shared.store;
        let location = store.locate(key);
        let now = AllExpired(&self.shared.clock);
        let (load_guard, started_at_version) = loop {
            let (flight, joined_at_version) = match self.lookup_or_join(location, key, &now) {
                LoadLookup::Live(_) => unreachable!("every value counts as expired"),
                LoadLookup::Leader(flight) => break (self.load_guard(location, flight, true), 0),
                LoadLookup::Follower(flight, joined_at_version) => (flight, joined_at_version),
            };
            let mut load_guard = self.load_guard(location, flight, false);
            if ReentrancyScope::is(&load_guard.flight) {
                // This call runs inside the loader of the flight, and would wait for itself.
                drop(load_guard);
                return loader().await;
            }
            match self.wait_for_load(&load_guard).await {
                WaitOutcome::Leader => {
                    load_guard.is_leader = true;
                    let started_at_version = load_guard.flight.write_version();
                    break (load_guard, started_at_version);
                }
                WaitOutcome::Finished(result) => {
                    // An older load was superseded by a write that preceded this call.
                    if result.is_loaded
                        && result.started_at_version >= joined_at_version
                        && let Ok(value) = &result.outcome
                    {
                        return value.clone();
                    }
                }
                WaitOutcome::Stalled => {}
            }
        };
        let loader = async move || Ok::<_, Infallible>(loader().await);
        let load = self.run_loader(load_guard, started_at_version, key, ttl, loader);
        match Box::pin(load).await {
            Ok((value, _)) => value,
            Err(never) => match *never {},
        }
    }
}
