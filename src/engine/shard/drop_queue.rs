//! Removed entries on their way out of a shard.

use crate::engine::{event::departure::Departure, panics};

/// Removed entries that are dropped after the lock is released. Holds one entry without an allocation, which is the
/// usual case.
pub(crate) struct DropQueue<K, V> {
    first: Option<(K, V)>,
    more: Vec<(K, V)>,
    /// The caller's key, if the map already had an equal one.
    key: Option<K>,
}

impl<K, V> DropQueue<K, V> {
    pub(crate) fn new() -> Self {
        Self { first: None, more: Vec::new(), key: None }
    }

    /// Reserves capacity for `count` entries; called before the lock, so that nothing is allocated under it.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.more.reserve(count.saturating_sub(1));
    }

    pub(crate) fn push_key(&mut self, key: K) {
        self.key = Some(key);
    }

    /// Drops the entries one by one. A panic of a `Drop` is caught: it must not affect the caller, who only wrote
    /// another key.
    pub(crate) fn drop_all(mut self) {
        self.drop_entries();
        drop(self.key);
    }

    /// Drops the entries but keeps the capacity.
    pub(crate) fn drop_entries(&mut self) {
        panics::drop_all(self.first.take());
        panics::drop_all(self.more.drain(..));
    }

    pub(crate) fn push(&mut self, key: K, value: V) {
        match self.first {
            None => self.first = Some((key, value)),
            Some(_) => self.more.push((key, value)),
        }
    }

    pub(crate) fn push_departure(&mut self, departure: Option<Departure<K, V>>) {
        if let Some(Departure { key, value, .. }) = departure {
            self.push(key, value);
        }
    }
}
