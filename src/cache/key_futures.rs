//! Futures on a key: [`Cache::expired`] waits for the removal of its value, [`Cache::wait_for`] for a value.

use std::{
    future::poll_fn,
    hash::{BuildHasher, Hash},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::Cache;
use crate::engine::{
    coop,
    event::Event,
    store::{DepartureWaiters, Location, Store},
};

/// Registration of a task that waits for a value of a key; dropping it ends the registration.
struct InsertWaiter<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    location: Location,
    insert_waiters: Arc<Notify>,
}

/// Registration of a task that waits for the removal of a value; dropping it ends the registration.
struct DepartureWaiter<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    location: Location,
    waiters: Arc<DepartureWaiters<K, V>>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Waits until the live value of `key` is removed, for any cause, and returns its event; `None` if there is no live
    /// value.
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
    ///
    /// The call resolves when the value is removed from memory. For an expired entry this is usually the next sweep.
    /// This includes causes that are not [published](super::Builder::publish). After [`shutdown`](Cache::shutdown)
    /// there are no sweeps, so the call returns `None`.
    ///
    /// The call does not poll. If no task waits for a key of a shard, this method adds no cost to calls on that shard.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a cancelled call leaves nothing behind.
    pub async fn expired<Q>(&self, key: &Q) -> Option<Arc<Event<K, V>>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let (store, clock) = (&self.inner.shared.store, &self.inner.shared.clock);
        let location = store.locate(key);
        let waiters = store.await_departure(location, key, clock);
        // Before an early return: the lookup may have removed an expired value, whose event is due.
        self.inner.shared.publisher.flush();
        let waiter = DepartureWaiter { store, location, waiters: waiters? };
        let mut event = pin!(waiter.waiters.event());
        let mut shutdown = pin!(self.inner.shared.after_shutdown());
        // The event first: a shutdown removes expired values before it ends. By hand: `select!` would take part in
        // Tokio's budget once more.
        poll_fn(|cx| match event.as_mut().poll(cx) {
            Poll::Ready(event) => Poll::Ready(Some(event)),
            Poll::Pending => shutdown.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until `key` has a live value, and returns a clone of it.
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
    ///
    /// If there is a live value already, it is returned immediately. The call does not poll: a write to the key wakes
    /// it. A value that is removed before the woken task has read it is missed, and the call continues to wait.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a cancelled call leaves nothing behind.
    pub async fn wait_for<Q>(&self, key: &Q) -> V
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let store = &self.inner.shared.store;
        let location = store.locate(key);
        loop {
            if let Some(value) = self.get(key).await {
                return value;
            }
            let insert_waiters = store.await_value(location);
            let waiter = InsertWaiter { store, location, insert_waiters };
            let mut notified = pin!(waiter.insert_waiters.notified());
            notified.as_mut().enable();
            // Checked after the waiter was registered and enabled: a value written between the first read and the
            // registration woke no one.
            if !self.contains_key(key).await {
                notified.await;
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
        self.store.leave_insert_waiters(self.location, &self.insert_waiters);
    }
}

impl<K, V, S> Drop for DepartureWaiter<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        self.store.leave_departure_waiters(self.location, &self.waiters);
    }
}
