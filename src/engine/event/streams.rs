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

/// A stream of removals that never delays the cache, and drops events if you read it too slowly.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::Cache;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let sessions = Cache::builder().build();
/// let mut events = sessions.events();
/// sessions.set_ex("token", "ada", Duration::from_secs(1_800)).await;
/// # let handle = sessions.clone();
/// # tokio::spawn(async move {
/// #     tokio::time::sleep(Duration::from_secs(3_600)).await;
/// #     handle.shutdown().await;
/// # });
///
/// while let Some(event) = events.recv().await {
///     match event {
///         Ok(event) => println!("{} is logged out: {}", event.value, event.cause),
///         Err(lagged) => println!("{lagged}"),
///     }
/// }
/// # }
/// ```
///
/// Created by [`Cache::events`](crate::Cache::events). If you fall more than
/// [`event_capacity`](crate::Builder::event_capacity) events behind, you miss the oldest ones, and receive their number
/// as [`Lagged`]. If you must not miss any, use [`LosslessEvents`].
///
/// After the last [`Cache`](crate::Cache) handle is dropped or the cache is [shut down](crate::Cache::shutdown), the
/// stream returns the remaining events and then ends. It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription exists"]
pub struct Events<K, V>(Subscription<K, V>);

/// A stream of removals that loses no event while it exists: for work that must be done for each of them.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::{Cache, Cause};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # let bill = async |_: &u32| ();
/// // The parking meter: each car is billed when it leaves.
/// let parked = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
/// let mut events = parked.events_lossless(1_000);
/// parked.set_ex("W-12345", 7, Duration::from_secs(3_600)).await;
/// parked.remove("W-12345").await;
///
/// let left = events.recv().await.unwrap();
/// bill(&left.value).await;
/// # assert_eq!(left.value, 7);
/// # }
/// ```
///
/// Created by [`Cache::events_lossless`](crate::Cache::events_lossless).
///
/// # If you read too slowly
///
/// When the number of unread events reaches the capacity of the stream, the sweeper waits until you read some. Expired
/// entries stay in memory, unreadable, for that time. A stream that is [limited](LosslessEvents::only) to causes
/// without [`Expired`](Cause::Expired) delays no expiration. One with [`Removed`](Cause::Removed) delays the removal of
/// entries by [`remove_tag`](crate::Cache::remove_tag) from memory.
///
/// Readers and writers never wait for a stream. The events that they cause are queued beyond the capacity, without a
/// limit. [`Stats::overflow`](crate::Stats::overflow) reports the largest such excess of any lossless stream.
///
/// # The end of the stream
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let prices = Cache::builder().event_capacity(2).build();
    /// let mut events = prices.events();
    /// for article in 1..=5 {
    ///     prices.set_ex(article, "9.99", Duration::from_secs(1)).await;
    /// }
    /// tokio::time::sleep(Duration::from_secs(2)).await;
    ///
    /// // Five entries expired while this task slept, and two events were kept.
    /// let lagged = events.recv().await.unwrap().unwrap_err();
    /// assert_eq!(lagged.0, 3, "missed");
    /// assert!(events.recv().await.unwrap().is_ok());
    /// # }
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = Cache::builder().build();
    /// let mut events = jobs.events_lossless(2);
    /// for job in 1..=5 {
    ///     jobs.set_ex(job, "not done in time", Duration::from_secs(1)).await;
    /// }
    /// tokio::time::sleep(Duration::from_secs(2)).await;
    /// for _job in 1..=5 {
    ///     let event = events.recv().await.unwrap();
    ///     println!("{}: {}", event.key, event.value);
    /// }
    /// # }
    /// ```
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
