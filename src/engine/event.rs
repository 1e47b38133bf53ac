//! What leaves is told: events, the streams that carry them, and the publisher between.
//!
//! 1. Departures are recorded in the store's journal under their shard's lock. [`Publisher::flush`] moves
//!    them to the log, holding the log's lock while it takes them, so their order survives. Where a crowd of
//!    writers leaves them in the journal for a while, whoever asks the log for anything takes them first.
//! 2. The log's lock is never held together with a shard's, and nothing is woken, dropped or sent to
//!    user code under it.
//! 3. Subscribers of the same causes and of one kind (lossless, or not) read one channel of the log. An event is
//!    in each channel of its cause: until all readers of that one have read it, or, in a ring, until so
//!    many have come that it falls out. So none keeps for another what that one does not hear, and what an
//!    event costs depends on how many channels there are, and not on how many subscribers.
//! 4. The journal keeps what some channel hears, and nothing else is even cloned for it.

mod channel;
mod chunked_deque;
mod log;
mod publisher;
mod queued_event;
mod streams;
mod subscription;

use std::fmt;

pub(crate) use self::publisher::Publisher;
pub use self::streams::{Events, LosslessEvents};
pub use crate::engine::store::{Cause, Event};

/// How many events a subscriber missed because it read too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Lagged(pub u64);

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the subscriber lagged behind and missed {} events", self.0)
    }
}

impl std::error::Error for Lagged {}
