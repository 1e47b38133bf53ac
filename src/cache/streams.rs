//! Subscriptions to removals: event streams and the expiry callback.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use tokio::task::JoinHandle;

use super::Cache;
use crate::engine::{
    event::{Cause, Event, Events, LosslessEvents},
    panics,
    tasks::spawn,
};

/// Capacity of the lossless stream that `on_expired` reads, the same as the default capacity of `events`.
const CALLBACK_CAPACITY: usize = 1_024;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Subscribes to the removals from now on. The cache never waits for the subscriber.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::new();
    /// let mut events = cache.events();
    /// cache.set_ex("session", 42, Duration::from_secs(30)).await;
    ///
    /// let event = events.recv().await.unwrap().unwrap();
    /// assert_eq!((event.key, event.value), ("session", 42));
    /// assert!(event.lag().unwrap() <= Duration::from_secs(1));
    /// # }
    /// ```
    ///
    /// A subscriber that falls behind by more than [`event_capacity`](super::Builder::event_capacity) events misses the
    /// oldest ones, and [`Lagged`](crate::Lagged) reports how many. The stream has the
    /// [published](super::Builder::publish) causes; [`Events::only`] limits it further.
    ///
    /// Publishing an event costs the same for any number of subscribers, except that waiting subscribers are woken one
    /// by one. If a value in the cache owns a stream of the same cache, the unread events of that stream stay in memory
    /// forever.
    #[doc(alias = "listener")]
    #[doc(alias = "subscribe")]
    pub fn events(&self) -> Events<K, V> {
        Events::new(&self.inner.shared.publisher)
    }

    /// Subscribes to the removals from now on. The stream loses no event while it exists.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::new();
    /// let mut events = cache.events_lossless(16);
    /// cache.set_ex("session", 42, Duration::from_secs(30)).await;
    /// assert_eq!(events.recv().await.unwrap().key, "session");
    /// # }
    /// ```
    ///
    /// When `capacity` events are unread, the sweeper waits, and expired entries stay in memory, unreadable, until the
    /// subscriber catches up. Readers and writers never wait; the events that they cause are queued beyond the
    /// capacity, without a limit ([`Stats::overflow`](crate::Stats::overflow)).
    ///
    /// The stream has the [published](super::Builder::publish) causes; [`LosslessEvents::only`] limits it further.
    ///
    /// # Panics
    ///
    /// Panics if `capacity` is 0.
    #[doc(alias = "eviction_listener")]
    #[doc(alias = "async_eviction_listener")]
    #[doc(alias = "removal_listener")]
    #[doc(alias = "subscribe")]
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<K, V> {
        LosslessEvents::new(&self.inner.shared.publisher, capacity)
    }

    /// Calls `callback` for each entry that expires from now on (TimedDict: `callback`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::new();
    /// let (sender, mut receiver) = tokio::sync::mpsc::channel(8);
    /// cache.on_expired(async move |event| sender.send(event.key).await.unwrap());
    ///
    /// cache.set_ex("session", 42, Duration::from_secs(30)).await;
    /// assert_eq!(receiver.recv().await, Some("session"));
    /// # }
    /// ```
    ///
    /// The calls are awaited one at a time, in a task on the runtime of the cache. The callback receives every
    /// [`Cause::Expired`] event and no other, regardless of [`publish`](super::Builder::publish). No event is lost: a
    /// slow callback delays the sweeper, as a lossless subscriber with a capacity of 1,024 does. A panic in it is
    /// logged and has no other effect.
    ///
    /// The closure is cloned for each call, as with axum handlers: share mutable state in an [`Arc`]. The task ends
    /// with the cache, or if it is stopped with [`JoinHandle::abort`].
    ///
    /// **A callback that owns a handle to its cache keeps the cache alive forever**, including its entries, sweeper and
    /// streams. It should own a [`WeakCache`](crate::WeakCache), whose documentation has an example.
    #[doc(alias = "eviction_listener")]
    #[doc(alias = "listener")]
    pub fn on_expired<F, Fut>(&self, callback: F) -> JoinHandle<()>
    where
        F: FnOnce(Arc<Event<K, V>>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let causes = Cause::Expired.bit();
        let mut events =
            LosslessEvents::of(&self.inner.shared.publisher, causes, CALLBACK_CAPACITY);
        // A copy, because the task must not hold the state: it would keep the cache alive.
        let name = self.inner.shared.name().to_owned();
        let task = async move {
            while let Some(event) = events.recv().await {
                let callback = callback.clone();
                // The closure is called inside, so that a panic before its future exists is caught too.
                if panics::caught(async move { callback(event).await }).await.is_err() {
                    tracing::error!(cache = name, "on_expired callback panicked");
                }
            }
        };
        spawn(&self.inner.shared.runtime, "on_expired", self.inner.shared.name(), Box::pin(task))
    }
}
