//! What a spool tells of itself.

use std::time::Duration;

#[cfg(feature = "serde")]
use crate::engine::seconds;

/// What a [`Spool`](crate::Spool) has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpoolStats {
    /// Events that are in the queue, or were taken from it again.
    pub written: u64,
    /// Of these, events that a crash of the machine may take, as the disk failed to sync them, where the queue
    /// [asks for that](crate::dirq::QueueSimpleBuilder::sync).
    pub unsynced: u64,
    /// Events that were taken off a stream and are not known to be in the queue.
    pub in_hand: usize,
    /// Events that serde could not make JSON of, which were passed over.
    pub unwritable: u64,
    /// Events that were longer than the queue takes, and were skipped, where that
    /// [is wanted](crate::Spool::skip_too_large).
    pub skipped: u64,
    /// Tries to write that failed.
    pub failures: u64,
    /// How long the queue has refused what is in hand; `None` while it takes it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::maybe_duration"))]
    pub stalled: Option<Duration>,
}
