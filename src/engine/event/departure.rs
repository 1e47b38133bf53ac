//! Departures of entries, and the public event types.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::engine::clock::{Deadline, Tick};
#[cfg(feature = "serde")]
use crate::engine::seconds;

/// Cause of the removal of an entry from the cache: expired, evicted, removed or replaced.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::{Cache, Cause};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let cache = Cache::builder().max_entries(100).build();
/// let mut events = cache.events();
/// cache.set_ex("session", 7, Duration::from_secs(60)).await;
///
/// let event = events.recv().await.unwrap().unwrap();
/// match event.cause {
///     Cause::Expired => println!("log out user {}", event.value),
///     Cause::Evicted => println!("the cache is too small"),
///     _ => {}
/// }
/// # assert_eq!(event.cause, Cause::Expired);
/// # }
/// ```
#[doc(alias = "RemovalCause")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Cause {
    /// The entry's TTL elapsed, it was idle for too long, or [`Cache::expire_now`](crate::Cache::expire_now) expired
    /// it.
    Expired,
    /// The entry was evicted to keep the cache within its bound.
    Evicted,
    /// The caller removed the entry.
    Removed,
    /// A new value was written to the key.
    Replaced,
}

/// The removal of one entry from the cache: its key and value, the cause and the time.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::{Cache, Cause};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let carts = Cache::builder().build();
/// let mut events = carts.events();
/// carts.set_ex("ada", vec!["book"], Duration::from_secs(1_800)).await;
///
/// let event = events.recv().await.unwrap().unwrap();
/// assert_eq!((event.key, event.cause), ("ada", Cause::Expired));
/// assert_eq!(event.value, ["book"], "still there, to remind Ada of it");
/// # }
/// ```
///
/// You get one event for each expiration or eviction; ask for the other causes with
/// [`publish`](crate::Builder::publish). The events of one key are in the order of the removals.
///
/// With feature `serde`, an event is serializable. Its times are written as seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Event<K, V> {
    /// Key of the removed entry.
    pub key: K,
    /// The removed value.
    pub value: V,
    /// Cause of the removal.
    pub cause: Cause,
    /// The deadline of the entry (with [`time_to_idle`](crate::Builder::time_to_idle), the earlier of its two
    /// deadlines); `None` if it had none. For an entry expired by [`expire_now`](crate::Cache::expire_now), the time of
    /// that call.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::maybe_instant"))]
    pub deadline: Option<Instant>,
    /// Time of the removal.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::instant"))]
    pub at: Instant,
}

/// The removal of an entry, on its way from the store to the event streams.
pub(crate) struct Departure<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) cause: Cause,
    pub(crate) deadline: Deadline,
    pub(crate) at: Tick,
    /// Tasks that wait for this removal, for any cause, and the key under which they were registered. Boxed,
    /// because almost no departure has waiters, and the event log holds many departures.
    #[allow(clippy::type_complexity)]
    pub(crate) waiters: Option<Box<(Arc<DepartureSignal<Arc<Event<K, V>>>>, K)>>,
}

/// A one-time signal to the tasks that wait for the removal of a value: an event that is set once and cloned to them.
pub(crate) struct DepartureSignal<T> {
    event: OnceLock<T>,
    notify: Notify,
}

impl<K, V> Event<K, V> {
    /// Returns how long after its deadline the entry was removed; `None` if it had no deadline or was removed before
    /// it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let cache = Cache::builder().build();
    /// let mut events = cache.events();
    /// cache.set_ex("lock", 1, Duration::from_secs(10)).await;
    ///
    /// let event = events.recv().await.unwrap().unwrap();
    /// assert!(event.lag().unwrap() <= Duration::from_millis(200), "removed in time");
    /// # }
    /// ```
    pub fn lag(&self) -> Option<Duration> {
        self.at.checked_duration_since(self.deadline?)
    }
}

#[cfg(feature = "metrics")]
impl<K, V> Departure<K, V> {
    /// Returns how long after its deadline an expired entry was removed; `None` for other causes.
    pub(crate) fn lag(&self) -> Option<Duration> {
        let is_due = self.cause == Cause::Expired && !self.deadline.is_persistent();
        is_due.then(|| self.at.since(Tick::from_nanoseconds(self.deadline.order())))
    }
}

impl Cause {
    /// Returns `"expired"`, `"evicted"`, `"removed"` or `"replaced"`, for logs and labels.
    ///
    /// ```
    /// # use fleeting::Cause;
    /// // A label of a metric.
    /// assert_eq!(Cause::Expired.as_str(), "expired");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Expired => "expired",
            Cause::Evicted => "evicted",
            Cause::Removed => "removed",
            Cause::Replaced => "replaced",
        }
    }

    /// Returns the bit of this cause in a set of causes.
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns a set of causes as bits.
    pub(crate) fn bits(causes: impl IntoIterator<Item = Cause>) -> u8 {
        causes.into_iter().fold(0, |bits, cause| bits | cause.bit())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Clone> DepartureSignal<T> {
    pub(crate) fn new() -> Self {
        Self { event: OnceLock::new(), notify: Notify::new() }
    }

    /// Sets the value and wakes all waiters.
    pub(crate) fn notify(&self, event: T) {
        // A second value is ignored. There is none: the signal left the wait map with the departure.
        let _ = self.event.set(event);
        self.notify.notify_waiters();
    }

    /// Waits until the value is set and returns a clone of it. Cancel safe.
    pub(crate) async fn event(&self) -> T {
        loop {
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(event) = self.event.get() {
                return event.clone();
            }
            notified.await;
        }
    }
}
