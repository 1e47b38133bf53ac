//! An event as the log holds it. The `Arc<Event>` is created when it is first needed, which is mostly by its reader and
//! after the log's lock is released.

use std::{mem, sync::Arc};

use super::departure::{Cause, Departure, Event};
use crate::engine::clock::Clock;

/// An unread event.
pub(super) enum QueuedEvent<K, V> {
    /// The only owner of key and value.
    Departure(Departure<K, V>),
    Event(Arc<Event<K, V>>),
    /// Placeholder while a departure is converted to an event.
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

    /// Returns the event for a further owner.
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
