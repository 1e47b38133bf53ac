//! Those who wait for a value to leave, whatever its cause.

use std::{pin::pin, sync::OnceLock};

use tokio::sync::Notify;

/// Told of once, to all: a `T`.
pub(crate) struct DepartureSignal<T> {
    event: OnceLock<T>,
    notify: Notify,
}

impl<T: Clone> DepartureSignal<T> {
    pub(super) fn new() -> Self {
        Self { event: OnceLock::new(), notify: Notify::new() }
    }

    /// It has left.
    pub(crate) fn tell(&self, event: T) {
        // Each is told of once: who has left does not leave again.
        let _ = self.event.set(event);
        self.notify.notify_waiters();
    }

    /// Waits until it has left. Cancel safe.
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
