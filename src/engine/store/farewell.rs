//! Those who wait for a value to leave, whatever its cause.

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
};

use tokio::sync::Notify;

use super::entry::Event;

pub(crate) struct Farewell<K, V> {
    event: OnceLock<Arc<Event<K, V>>>,
    told: Notify,
}

impl<K, V> Farewell<K, V> {
    pub(super) fn new() -> Self {
        Self { event: OnceLock::new(), told: Notify::new() }
    }

    /// It has left.
    pub(crate) fn tell(&self, event: Arc<Event<K, V>>) {
        // Each is told of once: who has left does not leave again.
        let _ = self.event.set(event);
        self.told.notify_waiters();
    }

    /// Waits until it has left. Cancel safe.
    pub(crate) async fn event(&self) -> Arc<Event<K, V>> {
        loop {
            let mut told = pin!(self.told.notified());
            told.as_mut().enable();
            if let Some(event) = self.event.get() {
                return event.clone();
            }
            told.await;
        }
    }
}
