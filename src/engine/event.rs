//! What leaves is told: events, the streams that carry them, and the publisher between.
//!
//! 1. Departures are recorded in the store's journal under their shard's lock. [`Publisher::flush`] moves
//!    them to the log, holding the log's lock while it takes them, so their order survives.
//! 2. The log's lock is never held together with a shard's, and nothing is woken, dropped or sent to
//!    user code under it.
//! 3. An event stays in the log until every lossless subscriber has read it, and until it is older than
//!    the ring's capacity or read by all for the others.

mod publisher;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use tokio::time::Instant;

pub(crate) use self::publisher::Publisher;
pub use crate::engine::store::Cause;

/// A departure: what left the cache, why and when.
///
/// There is exactly one event for each departure whose cause is
/// [published](crate::Builder::publish), and events of one key come in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<K, V> {
    /// The key it had.
    pub key: K,
    /// The value that left.
    pub value: V,
    /// Why it left.
    pub cause: Cause,
    /// When it was to die; `None` for a persistent value. Of a value ended by
    /// [`expire_now`](crate::Cache::expire_now), the moment of that call.
    pub deadline: Option<Instant>,
    /// When it was seen to leave.
    pub at: Instant,
}

/// How many events a subscriber missed because it read too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lagged(pub u64);

/// A stream of events that never slows the cache: who reads too slowly misses the oldest, and is told
/// how many by [`Lagged`]. Made by [`Cache::events`](crate::Cache::events).
///
/// The stream ends, after what it still holds, when the last [`Cache`](crate::Cache) handle is dropped
/// or the cache is [shut down](crate::Cache::shutdown). It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription lives"]
pub struct Events<K, V>(publisher::Subscription<K, V>);

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
pub struct LosslessEvents<K, V>(publisher::Subscription<K, V>);

impl<K, V> Event<K, V> {
    /// How long after its deadline the value was seen to leave; `None` where it had none or left before.
    pub fn lag(&self) -> Option<Duration> {
        self.at.checked_duration_since(self.deadline?)
    }
}

impl<K, V> Events<K, V> {
    pub(crate) fn new(publisher: &Arc<Publisher<K, V>>) -> Self {
        Self(publisher::Subscription::new(publisher, None))
    }

    /// The next event, or how many were missed before it; `None` when the stream has ended.
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
        Self(publisher::Subscription::new(publisher, Some(capacity)))
    }

    /// The next event; `None` when the stream has ended.
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

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the subscriber lagged behind and missed {} events", self.0)
    }
}

impl std::error::Error for Lagged {}
