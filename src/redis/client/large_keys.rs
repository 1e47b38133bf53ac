//! Keys of large values, which get a connection of their own.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use ::redis::{Cmd, Value};

use crate::redis::error::{key_bytes, keys_of};

/// Number of keys of large values that are remembered.
const REMEMBERED: usize = 1_024;

/// Keys whose last value was large, so that it is read over the connection for large values.
///
/// Each key has one place, which another key may take: then its next read delays other calls once more.
pub(super) struct LargeKeys {
    hasher: RandomState,
    /// Hashes of the keys; 0 for none.
    hashes: Box<[AtomicU64]>,
    /// False as long as there was no large value, which then costs nothing.
    has_any: AtomicBool,
}

impl LargeKeys {
    pub(super) fn new() -> Self {
        let hashes = (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: RandomState::new(), hashes, has_any: AtomicBool::new(false) }
    }

    pub(super) fn contains(&self, cmd: &Cmd) -> bool {
        if !self.has_any.load(Relaxed) {
            return false;
        }
        let (place, hash) = self.place(cmd);
        place.load(Relaxed) == hash
    }

    pub(super) fn insert(&self, cmd: &Cmd) {
        let (place, hash) = self.place(cmd);
        place.store(hash, Relaxed);
        self.has_any.store(true, Relaxed);
    }

    pub(super) fn remove(&self, cmd: &Cmd) {
        let (place, hash) = self.place(cmd);
        // Fails if another key has taken the place.
        let _ = place.compare_exchange(hash, 0, Relaxed, Relaxed);
    }

    fn place(&self, cmd: &Cmd) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(record_of(cmd)).max(1);
        (&self.hashes[hash as usize % REMEMBERED], hash)
    }
}

/// Returns the key of the record that a command or script is about, or else its first key.
fn record_of(cmd: &Cmd) -> &[u8] {
    // A record is `prefix:type:{name:shard}:key`; other keys of a script have no colon after the brace.
    let mut records = keys_of(cmd).filter(|key| key.windows(2).any(|pair| pair == b"}:"));
    records.next().unwrap_or_else(|| key_bytes(cmd))
}

/// Returns the size of the largest string in a reply, or in its array.
pub(super) fn size(reply: &Value) -> usize {
    match reply {
        Value::BulkString(bytes) => bytes.len(),
        Value::Array(parts) => parts.iter().map(size).max().unwrap_or(0),
        _ => 0,
    }
}
