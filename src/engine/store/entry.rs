//! Entries, their departures, and the public event types.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::departure_signal::DepartureSignal;
use crate::engine::clock::{AtomicDeadline, Deadline, Tick};
#[cfg(feature = "serde")]
use crate::engine::seconds;

/// A value and its deadline, which takes one word. Atomic, so that a read may extend an idle deadline under the read
/// lock.
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    deadline: AtomicDeadline,
}

/// Why an entry was removed from the cache.
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
/// Each removal whose cause is [published](crate::Builder::publish) produces exactly one event. The events of one key
/// are in the order of the removals.
///
/// With feature `serde`, an event is serializable. Its times are written as seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Event<K, V> {
    /// Key of the removed entry.
    pub key: K,
    /// The removed value.
    pub value: V,
    /// Why the entry was removed.
    pub cause: Cause,
    /// The deadline of the entry (with [`time_to_idle`](crate::Builder::time_to_idle), the earlier of its two
    /// deadlines); `None` if it had none. For an entry expired by [`expire_now`](crate::Cache::expire_now), the time of
    /// that call.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::maybe_instant"))]
    pub deadline: Option<Instant>,
    /// When the entry was removed.
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

impl<V> Entry<V> {
    pub(crate) fn new(value: V, deadline: Deadline) -> Self {
        Self { value, deadline: AtomicDeadline::new(deadline) }
    }

    #[inline(always)]
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline.get()
    }

    #[inline]
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline.set(deadline);
    }

    /// Moves the deadline to `to` if that is later. Needs only the read lock: concurrent calls leave the latest of
    /// their deadlines.
    #[inline]
    pub(crate) fn put_off(&self, to: Deadline) {
        self.deadline.put_off(to);
    }

    /// Replaces the value and the deadline, and returns the previous ones. Written field by field: if an entry is
    /// assembled in parts and then read as a whole, the read waits for all stores of the parts.
    #[inline]
    pub(crate) fn replace(&mut self, value: V, deadline: Deadline) -> Self {
        let value = mem::replace(&mut self.value, value);
        let before = Self::new(value, self.deadline());
        self.deadline.set(deadline);
        before
    }

    /// Converts the entry to its departure. Waiters are attached by [`Store::attach_waiters`](super::Store).
    pub(crate) fn depart<K>(self, key: K, cause: Cause, at: Tick) -> Departure<K, V> {
        let deadline = self.deadline();
        Departure { key, value: self.value, cause, deadline, at, waiters: None }
    }
}

impl<K, V> Event<K, V> {
    /// Returns how long after its deadline the entry was removed; `None` if it had no deadline or was removed before
    /// it.
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
