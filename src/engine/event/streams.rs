//! The streams, as their readers hold them.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::{Cause, Event, Lagged, publisher::Publisher, subscription::Subscription};

/// A stream of events that never slows the cache: who reads too slowly misses the oldest, and is told
/// how many by [`Lagged`]. Made by [`Cache::events`](crate::Cache::events).
///
/// The stream ends, after what it still holds, when the last [`Cache`](crate::Cache) handle is dropped
/// or the cache is [shut down](crate::Cache::shutdown). It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription lives"]
pub struct Events<K, V>(Subscription<K, V>);

/// A stream of events that loses none while it lives. Made by
/// [`Cache::events_lossless`](crate::Cache::events_lossless).
///
/// When it holds as many unread events as its capacity, it holds back the sweeper (and only the
/// sweeper): what is dead stays in memory, unreadable, until there is room. What readers and writers
/// cause meanwhile waits beyond the capacity, and [`Stats::overflow`](crate::Stats::overflow) says how
/// much that is.
///
/// The stream ends, after what it still holds, when the last [`Cache`](crate::Cache) handle is dropped
/// or the cache is [shut down](crate::Cache::shutdown). It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription lives"]
pub struct LosslessEvents<K, V>(Subscription<K, V>);

impl<K, V> Events<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>) -> Self {
        Self(Subscription::new(publisher, publisher.causes(), None))
    }

    /// This stream of these causes alone, of those that are
    /// [published](crate::Builder::publish); called twice, of those that both calls name.
    ///
    /// The others are to this stream as if they had never been, from the event on that it would have read
    /// next: they wake nobody who waits for it, and it misses none of its own for them. What it had missed
    /// before, [`Lagged`] still counts. Causes that no stream hears cost the cache nothing. The call looks
    /// at each event that waits unread.
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
    /// cache.set("ada", 2).await; // lets the first leave as expired
    /// cache.set("ada", 3).await;
    ///
    /// assert_eq!(replaced.recv().await.unwrap().unwrap().value, 2);
    /// # }
    /// ```
    pub fn only(self, causes: impl IntoIterator<Item = Cause>) -> Self {
        Self(self.0.only(Cause::bits(causes)))
    }

    /// The next event, or how many were missed before it; `None` when the stream has ended.
    ///
    /// It takes part in Tokio's cooperative budget: who has much to read still gives other tasks their turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it is done has taken nothing.
    pub async fn recv(&mut self) -> Option<Result<Arc<Event<K, V>>, Lagged>> {
        poll_fn(|cx| self.0.poll_next(cx)).await
    }
}

impl<K, V> LosslessEvents<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>, capacity: usize) -> Self {
        assert!(capacity > 0, "the capacity of lossless events must be at least 1, got {capacity}");
        Self::of(publisher, publisher.causes(), capacity)
    }

    /// Of these causes, published or not.
    pub(crate) fn of(publisher: &Arc<Publisher<K, V>>, causes: u8, capacity: usize) -> Self {
        Self(Subscription::new(publisher, causes, Some(capacity)))
    }

    /// This stream of these causes alone, of those that are
    /// [published](crate::Builder::publish); called twice, of those that both calls name.
    ///
    /// The others are to this stream as if they had never been, from the event on that it would have read
    /// next: they take no room in it, hold nothing back, and wake nobody who waits for it. A stream that
    /// does not hear [`Cause::Expired`] never holds back the sweeper, which sends nothing else. Causes that
    /// no stream hears cost the cache nothing. The call looks at each event that waits unread.
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

    /// The next event; `None` when the stream has ended.
    ///
    /// It takes part in Tokio's cooperative budget: who has much to read still gives other tasks their turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it is done has taken nothing.
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
