//! Hashes of keys that are shown to operators in place of the keys.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::LazyLock,
};

/// Hashes a key with a secret of the process, so that the key cannot be inferred, and has one hash everywhere.
pub(crate) fn shown_hash<Q: Hash + ?Sized>(key: &Q) -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SECRET.hash_one(key)
}
