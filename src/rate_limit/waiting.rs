//! The queues of those who wait for a key: who asked first is let in first.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// So many queues are not worth giving back.
const SMALL: usize = 64;

/// The queues of those who wait for a key; only keys for which somebody waits have one.
pub(crate) struct Waiting<K, S>(Mutex<HashMap<K, Queue, S>>);

/// Whoever holds it is at the head. Tokio's lock lets in who asked first.
type Queue = Arc<tokio::sync::Mutex<()>>;

/// A place in the queue of a key.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    pub(crate) queue: Queue,
}

impl<K, S> Waiting<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self(Mutex::new(HashMap::with_hasher(hasher)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Queue, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiting<K, S> {
    pub(crate) fn join(&self, key: K) -> Waiter<'_, K, S> {
        let queue = self.lock().entry(key.clone()).or_default().clone();
        Waiter { waiting: self, key, queue }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        let mut queues = self.waiting.lock();
        // The map's and ours: nobody else waits. Who joins needs the map's lock, so none can come in between.
        let is_last = Arc::strong_count(&self.queue) == 2;
        let last = if is_last { queues.remove_entry(&self.key) } else { None };
        if queues.capacity() > SMALL && queues.len() < queues.capacity() / 8 {
            let most = 2 * queues.len();
            queues.shrink_to(most);
        }
        // A key's drop is the user's code, which must not find the map locked.
        drop(queues);
        drop(last);
    }
}
