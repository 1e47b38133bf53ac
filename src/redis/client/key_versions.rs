//! Versions of keys: a cached answer is valid while the version of its key is unchanged.
//!
//! There is one counter per hash bucket, shared by the keys in it, and one for all keys.
//!
//! 1. A reader takes the version before it sends its request. While the version is current, this process has received
//!    nothing about the key, in any way, that the reply could be older than.
//! 2. Counters only grow. So an outdated version never becomes current again, however late the reply comes.
//! 3. Keys in the same bucket invalidate each other. That costs a request and is never incorrect.

use std::{
    hash::BuildHasher,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::engine::hasher::DefaultHasher;

/// Minimum and maximum number of buckets, 8 bytes each: 8 KiB to 8 MiB.
const BUCKETS: (usize, usize) = (1 << 10, 1 << 20);

/// Loads are `Acquire`: the version is read before the request is sent that follows in program order. Increments are
/// `Release`: a reader that sees the new count also sees everything that the invalidating task did before.
pub(super) struct KeyVersions {
    hasher: DefaultHasher,
    all_keys: Padded,
    buckets: Box<[AtomicU64]>,
}

/// A counter that every look-up reads, on cache lines of its own, so that writes to other data do not slow these reads
/// down.
#[repr(align(128))]
struct Padded(AtomicU64);

/// Index of a key's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket(usize);

/// Version of a key: the sum of its bucket's counter and the counter of all keys.
///
/// Neither counter shrinks, so equal sums mean that both are unchanged. The bucket is part of the version, so that a
/// check does not hash the key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) struct KeyVersion {
    bucket: Bucket,
    sum: u64,
}

impl KeyVersions {
    /// Creates versions for about `keys` keys.
    pub(super) fn new(keys: usize) -> Self {
        let (min, max) = BUCKETS;
        // Twice the keys, so that few of them share a bucket.
        let buckets = keys.saturating_mul(2).clamp(min, max).next_power_of_two();
        Self {
            hasher: DefaultHasher::default(),
            all_keys: Padded(AtomicU64::new(0)),
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    #[inline]
    pub(super) fn bucket(&self, key: &[u8]) -> Bucket {
        // A mask, as the number of buckets is a power of two.
        Bucket(self.hasher.hash_one(key) as usize & (self.buckets.len() - 1))
    }

    #[inline]
    pub(super) fn version(&self, bucket: Bucket) -> KeyVersion {
        // `Acquire`, twice: a request that is sent after this must not be ordered before it.
        let all_keys = self.all_keys.0.load(Acquire);
        KeyVersion { bucket, sum: all_keys.wrapping_add(self.buckets[bucket.0].load(Acquire)) }
    }

    #[inline]
    pub(super) fn is_current(&self, version: KeyVersion) -> bool {
        self.version(version.bucket) == version
    }

    pub(super) fn invalidate(&self, bucket: Bucket) {
        // Pairs with `Acquire` in `version`.
        self.buckets[bucket.0].fetch_add(1, Release);
    }

    pub(super) fn invalidate_all(&self) {
        // Pairs with `Acquire` in `version`.
        self.all_keys.0.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests;
