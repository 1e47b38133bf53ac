//! What the store holds of a key, and what leaves it.

#[cfg(feature = "metrics")]
use std::time::Duration;
use std::{fmt, mem};

use crate::engine::clock::{Deadline, Tick};

/// A value and when it dies: one word more than the value.
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    pub(crate) deadline: Deadline,
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

/// What left the store, on its way to the streams.
pub(crate) struct Departure<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) cause: Cause,
    pub(crate) deadline: Deadline,
    pub(crate) at: Tick,
}

impl<V> Entry<V> {
    pub(crate) fn new(value: V, deadline: Deadline) -> Self {
        Self { value, deadline }
    }

    /// Puts a new value here; returns what was here. Field by field: the processor waits for an entry that
    /// was just put together in pieces to be read as a whole.
    #[inline]
    pub(crate) fn replace(&mut self, value: V, deadline: Deadline) -> Self {
        let value = mem::replace(&mut self.value, value);
        Self { value, deadline: mem::replace(&mut self.deadline, deadline) }
    }

    pub(crate) fn depart<K>(self, key: K, cause: Cause, at: Tick) -> Departure<K, V> {
        Departure { key, value: self.value, cause, deadline: self.deadline, at }
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
