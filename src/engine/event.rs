//! Events of removed entries: the event log, its subscribers, and the publisher that fills it from the journal.
//!
//! 1. The store records departures in its journal under the lock of their shard. [`Publisher::flush`] moves them to the
//!    event log. It takes them while it holds the log's lock, so two flushing threads cannot reorder the events of a
//!    key. Under contention, writers leave departures in the journal for a while; every read of the log moves them
//!    first.
//! 2. The log's lock is never held together with a shard lock. No task is woken, no value dropped and no user code
//!    called under it, because each of these may call back into the cache.
//! 3. Subscribers of the same causes and of the same kind (lossless or not) share one channel of the log. A channel
//!    keeps an event until all of its readers have read it, or, as a ring, until newer events push it out. So no
//!    channel keeps events that its readers did not subscribe to, and the cost of an event depends on the number of
//!    channels, not of subscribers.
//! 4. The journal records only causes that some channel subscribes to. Keys of other departures are not even cloned.

mod channel;
mod chunked_deque;
pub(crate) mod departure;
pub(crate) mod journal;
mod log;
mod publisher;
mod queued_event;
mod streams;
mod subscription;

use std::fmt;

pub(crate) use self::publisher::Publisher;
pub use self::{
    departure::{Cause, Event},
    streams::{Events, LosslessEvents},
};

/// Number of events that a subscriber missed because it read too slowly. Returned by [`Events::recv`], which has an
/// example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Lagged(pub u64);

impl fmt::Display for Lagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the subscriber lagged behind and missed {} events", self.0)
    }
}

impl std::error::Error for Lagged {}
