//! Statistics of a spool.

use std::time::Duration;

#[cfg(feature = "serde")]
use crate::engine::seconds;

/// Statistics of a [`Spool`](crate::Spool), by which you notice a full disk. There is an example at
/// [`Spool::stats`](crate::Spool::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpoolStats {
    /// Events written to the queue, including those that were already taken from it.
    pub written: u64,
    /// Written events that may not survive a crash of the machine, because the disk failed to sync them although the
    /// queue [is synced](crate::dirq::QueueSimpleBuilder::sync).
    pub unsynced: u64,
    /// Events that were received from a stream and are not known to be in the queue.
    pub in_hand: usize,
    /// Events that were ignored because they could not be converted to JSON: serde failed, or a key or value contains
    /// NaN or infinity, or is nested deeper than 126 arrays or maps.
    pub unwritable: u64,
    /// Events that were skipped because they exceed the queue's `max_size`, if
    /// [`skip_too_large`](crate::Spool::skip_too_large) is set.
    pub skipped: u64,
    /// Failed attempts to write.
    pub failures: u64,
    /// Time for which the queue has rejected the events in hand; `None` if it accepts them.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::maybe_duration"))]
    pub stalled: Option<Duration>,
}
