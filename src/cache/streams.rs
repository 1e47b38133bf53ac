//! The streams of a cache, and the callback that is one of their readers.

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

/// How many events `on_expired` may be behind before it holds back the sweeper.
const CALLBACK_CAPACITY: usize = 1_024;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// A stream of what leaves from now on. It never slows the cache: a subscriber that falls behind
    /// [`event_capacity`](super::Builder::event_capacity) misses the oldest events, and is told how many.
    ///
    /// It hears what is [published](super::Builder::publish), or [less](Events::only). An event costs whoever
    /// causes it the same, however many subscribers there are; those who wait for it are woken one by one.
    ///
    /// A value that holds a stream of the very cache it is in keeps that stream's events in memory for ever.
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
    pub fn events(&self) -> Events<K, V> {
        Events::new(&self.shared.publisher)
    }

    /// A stream of what leaves from now on that loses nothing while it lives: with `capacity` unread
    /// events it holds back the sweeper, never a reader or a writer.
    ///
    /// It hears what is [published](super::Builder::publish), or [less](LosslessEvents::only).
    ///
    /// # Panics
    ///
    /// Where `capacity` is 0.
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<K, V> {
        LosslessEvents::new(&self.shared.publisher, capacity)
    }

    /// Calls and awaits `callback` for each value that expires from now on, one after the other, in a
    /// task on the cache's runtime (TimedDict: `callback`). It hears every [`Cause::Expired`] and nothing
    /// else, whatever [`publish`](super::Builder::publish) says.
    ///
    /// It loses nothing: a slow callback holds back the sweeper as a lossless subscriber of 1,024 events
    /// does. A panic in it is logged and harms nothing. As a handler of axum, the closure is cloned for
    /// each call: share what it changes in an `Arc`. [`JoinHandle::abort`] ends it; so does the end of
    /// the cache.
    ///
    /// **A callback that owns a handle of its cache keeps it alive for ever**, values, sweeper, streams and all:
    /// it would end with the cache, which it does not let end. Let it own a [`WeakCache`](crate::WeakCache),
    /// whose page has an example.
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
    pub fn on_expired<F, Fut>(&self, callback: F) -> JoinHandle<()>
    where
        F: FnOnce(Arc<Event<K, V>>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let causes = Cause::Expired.bit();
        let mut events = LosslessEvents::of(&self.shared.publisher, causes, CALLBACK_CAPACITY);
        let name = self.shared.name().to_owned();
        let task = async move {
            while let Some(event) = events.recv().await {
                let callback = callback.clone();
                if panics::caught(async move { callback(event).await }).await.is_err() {
                    tracing::error!(cache = name, "the callback of on_expired panicked");
                }
            }
        };
        spawn(&self.shared.runtime, "on_expired", self.shared.name(), task)
    }
}
