//! What is told, as the log keeps it: put together as an event where that is needed first, and so mostly by its
//! reader, without a lock.

use std::{mem, sync::Arc};

use super::{Cause, Event};
use crate::engine::{clock::Clock, store::Departure};

pub(super) enum QueuedEvent<K, V> {
    /// Nobody else has it.
    Departure(Departure<K, V>),
    Event(Arc<Event<K, V>>),
    /// On its way from the one to the other.
    Moved,
}

impl<K, V> QueuedEvent<K, V> {
    pub(super) fn cause(&self) -> Cause {
        match self {
            QueuedEvent::Departure(departure) => departure.cause,
            QueuedEvent::Event(event) => event.cause,
            QueuedEvent::Moved => unreachable!("it is moved within `share` alone"),
        }
    }

    /// For one more who has it.
    pub(super) fn share(&mut self, clock: &Clock) -> Arc<Event<K, V>> {
        let event = mem::replace(self, QueuedEvent::Moved).into_event(clock);
        *self = QueuedEvent::Event(event.clone());
        event
    }

    pub(super) fn into_event(self, clock: &Clock) -> Arc<Event<K, V>> {
        match self {
            QueuedEvent::Departure(departure) => Arc::new(Event {
                key: departure.key,
                value: departure.value,
                cause: departure.cause,
                deadline: clock.instant_of(departure.deadline),
                at: clock.instant(departure.at),
            }),
            QueuedEvent::Event(event) => event,
            QueuedEvent::Moved => unreachable!("it is moved within `share` alone"),
        }
    }
}
