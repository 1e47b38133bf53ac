//! What the store holds of a key, and what leaves it.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::departure_signal::DepartureSignal;
use crate::engine::clock::{AtomicDeadline, Deadline, Tick};
#[cfg(feature = "serde")]
use crate::engine::seconds;

/// A value and when it dies: one word more than the value.
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    deadline: AtomicDeadline,
}

/// Why a value left the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Cause {
    /// Its TTL ran out, or [`Cache::expire_now`](crate::Cache::expire_now) ended its life.
    Expired,
    /// It made room for another.
    Evicted,
    /// The caller removed it.
    Removed,
    /// A new value took its key.
    Replaced,
}

/// A departure: what left the cache, why and when.
///
/// There is exactly one event for each departure whose cause is
/// [published](crate::Builder::publish), and events of one key come in the order in which they happened.
///
/// serde (feature `serde`) writes its fields, the times in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Event<K, V> {
    /// The key it had.
    pub key: K,
    /// The value that left.
    pub value: V,
    /// Why it left.
    pub cause: Cause,
    /// When it was to die; `None` for a persistent value. Of a value ended by
    /// [`expire_now`](crate::Cache::expire_now), the moment of that call.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::maybe_instant"))]
    pub deadline: Option<Instant>,
    /// When it was seen to leave.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::instant"))]
    pub at: Instant,
}

/// What left the store, on its way to the streams.
pub(crate) struct Departure<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) cause: Cause,
    pub(crate) deadline: Deadline,
    pub(crate) at: Tick,
    /// Who waits for it, of whatever cause, and the key by which they were found. Boxed: hardly any departure has it, and
    /// streams keep many.
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

    /// Puts the deadline off, under the lock for reading.
    #[inline]
    pub(crate) fn put_off(&self, to: Deadline) {
        self.deadline.put_off(to);
    }

    /// Puts a new value here; returns what was here. Field by field: the processor waits for an entry that
    /// was just put together in pieces to be read as a whole.
    #[inline]
    pub(crate) fn replace(&mut self, value: V, deadline: Deadline) -> Self {
        let value = mem::replace(&mut self.value, value);
        let before = Self::new(value, self.deadline());
        self.deadline.set(deadline);
        before
    }

    pub(crate) fn depart<K>(self, key: K, cause: Cause, at: Tick) -> Departure<K, V> {
        let deadline = self.deadline();
        Departure { key, value: self.value, cause, deadline, at, waiters: None }
    }
}

impl<K, V> Event<K, V> {
    /// How long after its deadline the value was seen to leave; `None` where it had none or left before.
    pub fn lag(&self) -> Option<Duration> {
        self.at.checked_duration_since(self.deadline?)
    }
}

#[cfg(feature = "metrics")]
impl<K, V> Departure<K, V> {
    /// How long after its deadline what expired was seen to leave.
    pub(crate) fn lag(&self) -> Option<Duration> {
        let is_due = self.cause == Cause::Expired && !self.deadline.is_persistent();
        is_due.then(|| self.at.since(Tick::from_nanoseconds(self.deadline.order())))
    }
}

impl Cause {
    /// `"expired"`, `"evicted"`, `"removed"` or `"replaced"`, as for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Expired => "expired",
            Cause::Evicted => "evicted",
            Cause::Removed => "removed",
            Cause::Replaced => "replaced",
        }
    }

    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// A set of causes, as the bits of all.
    pub(crate) fn bits(causes: impl IntoIterator<Item = Cause>) -> u8 {
        causes.into_iter().fold(0, |bits, cause| bits | cause.bit())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
