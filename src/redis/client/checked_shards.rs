//! State of the check of the number of shards: of each handle of a cache, and of a client.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};

use crate::redis::keyspace::Keyspace;

/// Maximum number of caches that a client remembers as checked. Beyond it, it forgets all, and checks them again.
const MAX_CHECKED: usize = 1_024;

/// Check that precedes the commands of a cache.
pub(super) struct ShardCheck {
    pub(super) keyspace: Keyspace,
    /// True if the number of shards was given to the builder.
    pub(super) is_given: bool,
    pub(super) is_checked: AtomicBool,
    /// True if commands wait for the check.
    pub(super) must_wait: AtomicBool,
    /// True while a task reads the record.
    pub(super) is_reading: AtomicBool,
}

impl ShardCheck {
    /// Creates the check of a cache that was checked before with the result `known`, if there is one.
    pub(super) fn new(keyspace: Keyspace, is_given: bool, known: Option<bool>) -> Self {
        Self {
            keyspace,
            is_given,
            // Not for a given number: each handle then restores a record that was lost.
            is_checked: (!is_given && known == Some(true)).into(),
            must_wait: (is_given || known == Some(false)).into(),
            is_reading: false.into(),
        }
    }
}

/// Caches with the default number of shards whose record was read, by their names, and whether they have that number.
/// So a program that creates a handle per request does not read it for each of them.
#[derive(Default)]
pub(super) struct CheckedCaches(Mutex<HashMap<String, bool>>);

impl CheckedCaches {
    pub(super) fn get(&self, name: &str) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    pub(super) fn insert(&self, name: &str, has_default: bool) {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if caches.len() >= MAX_CHECKED {
            caches.clear();
        }
        caches.insert(name.to_owned(), has_default);
    }
}
