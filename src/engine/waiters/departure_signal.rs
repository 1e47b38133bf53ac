//! A one-time signal to the tasks that wait for the removal of a value.

use std::{pin::pin, sync::OnceLock};

use tokio::sync::Notify;

/// A value that is set once and cloned to all waiters.
pub(crate) struct DepartureSignal<T> {
    event: OnceLock<T>,
    notify: Notify,
}

impl<T: Clone> DepartureSignal<T> {
    pub(crate) fn new() -> Self {
        Self { event: OnceLock::new(), notify: Notify::new() }
    }

    /// Sets the value and wakes all waiters.
    pub(crate) fn tell(&self, event: T) {
        // A second value is ignored. There is none: the signal left the wait map with the departure.
        let _ = self.event.set(event);
        self.notify.notify_waiters();
    }

    /// Waits until the value is set and returns a clone of it. Cancel safe.
    pub(crate) async fn event(&self) -> T {
        loop {
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(event) = self.event.get() {
                return event.clone();
            }
            notified.await;
        }
    }
}
