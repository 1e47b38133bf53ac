//! What is told, as the log keeps it: put together as an event where that is needed first, and so mostly by its
//! reader, without a lock.

use std::{mem, sync::Arc};

use super::{Cause, Event};
use crate::engine::{clock::Clock, store::Departure};

pub(super) enum Told<K, V> {
    /// Nobody else has it.
    Departure(Departure<K, V>),
    Event(Arc<Event<K, V>>),
    /// On its way from the one to the other.
    Moved,
}

impl<K, V> Told<K, V> {
    pub(super) fn cause(&self) -> Cause {
        match self {
            Told::Departure(departure) => departure.cause,
            Told::Event(event) => event.cause,
            Told::Moved => unreachable!("it is moved within `share` alone"),
        }
    }

    /// For one more who has it.
    pub(super) fn share(&mut self, clock: &Clock) -> Arc<Event<K, V>> {
        let event = mem::replace(self, Told::Moved).into_event(clock);
        *self = Told::Event(event.clone());
        event
    }

    pub(super) fn into_event(self, clock: &Clock) -> Arc<Event<K, V>> {
        match self {
            Told::Departure(departure) => Arc::new(Event {
                key: departure.key,
                value: departure.value,
                cause: departure.cause,
                deadline: clock.instant_of(departure.deadline),
                at: clock.instant(departure.at),
            }),
            Told::Event(event) => event,
            Told::Moved => unreachable!("it is moved within `share` alone"),
        }
    }
}
