//! State of the check of the number of shards: of each cache of a client, or of each handle.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU8},
};

use crate::redis::keyspace::Keyspace;

/// Maximum number of caches whose state a client remembers. Beyond it, it forgets all, and new handles check again.
const MAX_CACHES: usize = 1_024;

/// Check that precedes the commands of a cache.
pub(super) struct ShardCheck {
    pub(super) keyspace: Keyspace,
    /// True if the number of shards was given to the builder.
    pub(super) is_given: bool,
    /// One of the states below. It publishes no other data, so all accesses are `Relaxed`.
    pub(super) state: Arc<AtomicU8>,
}

/// The record was not read. The next command starts a task that reads it.
pub(super) const UNREAD: u8 = 0;
/// A task reads the record. Commands do not wait for it.
pub(super) const READING: u8 = 1;
/// Each command waits for a check, until one succeeds.
pub(super) const REQUIRED: u8 = 2;
/// No command needs a check.
pub(super) const PASSED: u8 = 3;

/// States of the caches with the default number of shards, by their names: all handles of a cache share one. So a
/// program that creates a handle per request does not read the record for each of them.
#[derive(Default)]
pub(super) struct CheckedCaches(Mutex<HashMap<String, Arc<AtomicU8>>>);

impl CheckedCaches {
    /// Returns the check of a handle.
    pub(super) fn check(&self, keyspace: Keyspace, is_given: bool) -> ShardCheck {
        let state = match is_given {
            // Not shared: each handle restores a record that was lost.
            true => Arc::new(REQUIRED.into()),
            false => self.shared_state(keyspace.name()),
        };
        ShardCheck { keyspace, is_given, state }
    }

    fn shared_state(&self, name: &str) -> Arc<AtomicU8> {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = caches.get(name) {
            return state.clone();
        }
        if caches.len() >= MAX_CACHES {
            caches.clear();
        }
        caches.entry(name.to_owned()).or_insert_with(|| Arc::new(UNREAD.into())).clone()
    }
}
