//! The public event streams, [`Events`] and [`LosslessEvents`].

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::{Cause, Event, Lagged, publisher::Publisher, subscription::Subscription};

/// A stream of events that never delays the cache, and drops events if it is read too slowly. Created by
/// [`Cache::events`](crate::Cache::events).
///
/// A subscriber that falls more than [`event_capacity`](crate::Builder::event_capacity) events behind misses the oldest
/// ones, and receives their number as [`Lagged`].
///
/// After the last [`Cache`](crate::Cache) handle is dropped or the cache is [shut down](crate::Cache::shutdown), the
/// stream returns the remaining events and then ends. It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription exists"]
pub struct Events<K, V>(Subscription<K, V>);

/// A stream of events that loses no event while it exists. Created by
/// [`Cache::events_lossless`](crate::Cache::events_lossless).
///
/// When the number of unread events reaches the capacity of the stream, the sweeper waits until events are read;
/// expired entries stay in memory, unreadable, for that time. Readers and writers never wait for a stream. The events
/// that they cause are queued beyond the capacity, without a limit: [`Stats::overflow`](crate::Stats::overflow) reports
/// the largest such excess of any lossless stream. A stream that is [limited](LosslessEvents::only) to causes without
/// [`Expired`](Cause::Expired) delays no expiration. One with [`Removed`](Cause::Removed) delays the removal of entries
/// by [`remove_tag`](crate::Cache::remove_tag) from memory.
///
/// After the last [`Cache`](crate::Cache) handle is dropped or the cache is [shut down](crate::Cache::shutdown), the
/// stream returns the remaining events and then ends. It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription exists"]
pub struct LosslessEvents<K, V>(Subscription<K, V>);

impl<K, V> Events<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>) -> Self {
        Self(Subscription::new(publisher, publisher.causes(), None))
    }

    /// Limits this stream to `causes`.
    ///
    /// Causes that the cache does not [publish](crate::Builder::publish) are ignored. If `only` is called several
    /// times, only causes that were given in every call remain.
    ///
    /// Events with other causes are discarded, including those that are unread now: they wake no task, and do not count
    /// as missed. Events that were missed before `only` was called are still reported as [`Lagged`]. A cause without
    /// any subscriber costs the cache nothing. A call costs O(n) for n unread events.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Cause};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().publish([Cause::Expired, Cause::Replaced]).build();
    /// let mut replaced = cache.events().only([Cause::Replaced]);
    /// cache.set_ex("ada", 1, Duration::ZERO).await;
    /// cache.set("ada", 2).await; // removes the first value as expired
    /// cache.set("ada", 3).await;
    ///
    /// assert_eq!(replaced.recv().await.unwrap().unwrap().value, 2);
    /// # }
    /// ```
    pub fn only(self, causes: impl IntoIterator<Item = Cause>) -> Self {
        Self(self.0.only(Cause::bits(causes)))
    }

    /// Returns the next event, or the number of events missed before it; `None` after the end of the stream.
    ///
    /// This method participates in Tokio's cooperative scheduling, so a task with many unread events still yields to
    /// others.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. A call that is dropped before it completes has consumed no event.
    pub async fn recv(&mut self) -> Option<Result<Arc<Event<K, V>>, Lagged>> {
        poll_fn(|cx| self.0.poll_next(cx)).await
    }
}

impl<K, V> LosslessEvents<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>, capacity: usize) -> Self {
        assert!(capacity > 0, "the capacity of lossless events must be at least 1, got {capacity}");
        Self::of(publisher, publisher.causes(), capacity)
    }

    /// Subscribes to `causes`, published or not.
    pub(crate) fn of(publisher: &Arc<Publisher<K, V>>, causes: u8, capacity: usize) -> Self {
        Self(Subscription::new(publisher, causes, Some(capacity)))
    }

    /// Limits this stream to `causes`.
    ///
    /// Causes that the cache does not [publish](crate::Builder::publish) are ignored. If `only` is called several
    /// times, only causes that were given in every call remain.
    ///
    /// Events with other causes are discarded, including those that are unread now: they use no capacity, delay no
    /// sweep, and wake no task. A cause without any subscriber costs the cache nothing. A call costs O(n) for n unread
    /// events.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Cache, Cause};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().publish([Cause::Removed, Cause::Replaced]).build();
    /// let mut removed = cache.events_lossless(16).only([Cause::Removed]);
    /// cache.set("ada", 1).await;
    /// cache.set("ada", 2).await;
    /// cache.remove("ada").await;
    ///
    /// assert_eq!(removed.recv().await.unwrap().value, 2);
    /// # }
    /// ```
    pub fn only(self, causes: impl IntoIterator<Item = Cause>) -> Self {
        Self(self.0.only(Cause::bits(causes)))
    }

    /// Returns the next event; `None` after the end of the stream.
    ///
    /// This method participates in Tokio's cooperative scheduling, so a task with many unread events still yields to
    /// others.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. A call that is dropped before it completes has consumed no event.
    pub async fn recv(&mut self) -> Option<Arc<Event<K, V>>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Event<K, V>>>> {
        self.0.poll_next(cx).map(|next| next.map(|event| event.expect("lossless, so never lagged")))
    }
}

impl<K, V> Stream for Events<K, V> {
    type Item = Result<Arc<Event<K, V>>, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }
}

impl<K, V> Stream for LosslessEvents<K, V> {
    type Item = Arc<Event<K, V>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl<K, V> fmt::Debug for Events<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("unread", &self.0.unread()).finish()
    }
}

impl<K, V> fmt::Debug for LosslessEvents<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LosslessEvents").field("unread", &self.0.unread()).finish()
    }
}
