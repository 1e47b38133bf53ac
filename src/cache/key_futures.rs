//! Futures on keys: of a value that is to come, and of one that is to leave.

use std::{
    hash::{BuildHasher, Hash},
    pin::pin,
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::Cache;
use crate::engine::{
    coop,
    event::Event,
    store::{DepartureWaiters, Location, Store},
};

/// A place among those who wait for a value to come, until it is dropped.
struct InsertWaiter<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    place: Location,
    insert_waiters: Arc<Notify>,
}

/// A place among those who wait for a value to leave, until it is dropped.
struct DepartureWaiter<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    place: Location,
    waiters: Arc<DepartureWaiters<K, V>>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// The event of the live value of `key`, when it leaves, whatever the cause; `None` where there is no live value.
    ///
    /// It comes when the departure is seen: of a value that expires, mostly with the next sweep. It comes also where
    /// [`publish`](super::Builder::publish) leaves its cause out. It waits without looking again and again, and costs
    /// others nothing while nobody waits for anything in the same shard.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Nothing is kept of one that is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Cause};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let codes = Cache::new();
    /// codes.set_ex("ada", 4711, Duration::from_secs(30)).await;
    /// let event = codes.expired("ada").await.unwrap();
    /// assert_eq!((event.value, event.cause), (4711, Cause::Expired));
    /// assert!(codes.expired("ada").await.is_none());
    /// # }
    /// ```
    pub async fn expired<Q>(&self, key: &Q) -> Option<Arc<Event<K, V>>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        let place = store.place(key);
        let waiters = store.await_departure(place, key, clock);
        self.shared.publisher.flush();
        let mourner = DepartureWaiter { store, place, waiters: waiters? };
        Some(mourner.waiters.event().await)
    }

    /// A clone of the live value of `key`, as soon as there is one.
    ///
    /// It waits without looking again and again: who writes the key wakes it. A value that is gone before it is looked at
    /// is waited over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Nothing is kept of one that is dropped.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let answers: Cache<u64, &str> = Cache::new();
    /// let waiting = tokio::spawn({
    ///     let answers = answers.clone();
    ///     async move { answers.wait_for(&7).await }
    /// });
    /// tokio::task::yield_now().await;
    /// answers.set(7, "yes").await;
    /// assert_eq!(waiting.await.unwrap(), "yes");
    /// # }
    /// ```
    pub async fn wait_for<Q>(&self, key: &Q) -> V
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let store = &self.shared.store;
        let place = store.place(key);
        loop {
            if let Some(value) = self.get(key).await {
                return value;
            }
            let insert_waiters = store.await_value(place);
            let comer = InsertWaiter { store, place, insert_waiters };
            let mut told = pin!(comer.insert_waiters.notified());
            told.as_mut().enable();
            // It may have come before anybody could tell.
            if !self.contains_key(key).await {
                told.await;
            }
        }
    }
}

impl<K, V, S> Drop for InsertWaiter<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        self.store.leave_insert_waiters(self.place, &self.insert_waiters);
    }
}

impl<K, V, S> Drop for DepartureWaiter<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        self.store.leave_departure_waiters(self.place, &self.waiters);
    }
}
