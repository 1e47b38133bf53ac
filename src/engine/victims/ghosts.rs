//! Ghosts: hashes and access words of recently evicted keys. Four bytes each, in sets of four; a quarter more than the
//! shard has entries.
//!
//! One slot of each set is reserved for one key in sixteen, chosen by its hash. So a sample of all keys is remembered
//! for far longer, and the model also learns of rare keys and of long loops.

use std::{mem, ptr};

use super::access_word::AccessWord;
use crate::engine::{shard::table::prefetch, split_mix::mix};

/// The newest ghost first; the last slot is the long-term one.
type Set = [u32; 4];

const EMPTY: u32 = 0;

#[derive(Default)]
pub(crate) struct Ghosts {
    sets: Box<[Set]>,
    /// Hash and access word of the key that was evicted last. It gets its slot at the next eviction: in a large cache,
    /// this one would wait for the memory, which is prefetched until then.
    latest: Option<(u64, AccessWord)>,
}

impl Ghosts {
    /// Remembers an evicted key, as one of `len` entries. Returns the access word of the ghost that was displaced.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        access_word: AccessWord,
        len: usize,
    ) -> Option<AccessWord> {
        self.resize_for(len);
        self.prefetch(hash);
        let (hash, access_word) = self.latest.replace((hash, access_word))?;
        let slot = GhostPlace::of(hash, self.sets.len());
        let set = &mut self.sets[slot.set];
        let displaced = if slot.is_long_term {
            mem::replace(&mut set[3], slot.ghost(access_word))
        } else {
            let [newest, next, displaced, _] = *set;
            // Not `rotate_right`, which calls `memmove` for these twelve bytes.
            (set[0], set[1], set[2]) = (slot.ghost(access_word), newest, next);
            displaced
        };
        (displaced != EMPTY).then(|| GhostPlace::access_word(displaced))
    }

    /// Prefetches the set in which [`take`](Self::take) searches.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(set) = self.sets.get(GhostPlace::of(hash, self.sets.len()).set) {
            prefetch(ptr::from_ref(set).cast());
        }
    }

    /// Removes the ghost of a key that is inserted again, and returns its access word.
    pub(crate) fn take(&mut self, hash: u64) -> Option<AccessWord> {
        if self.sets.is_empty() {
            return None;
        }
        if let Some((_, access_word)) = self.latest.take_if(|(latest, _)| *latest == hash) {
            return Some(access_word);
        }
        let slot = GhostPlace::of(hash, self.sets.len());
        let ghost = self.sets[slot.set].iter_mut().find(|ghost| slot.matches(**ghost))?;
        Some(GhostPlace::access_word(mem::replace(ghost, EMPTY)))
    }

    /// Returns whether the key of this hash has a ghost.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        if self.sets.is_empty() {
            return false;
        }
        let slot = GhostPlace::of(hash, self.sets.len());
        self.latest.is_some_and(|(latest, _)| latest == hash)
            || self.sets[slot.set].iter().any(|ghost| slot.matches(*ghost))
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Adapts to the number of entries. If it has changed much, all ghosts are dropped.
    fn resize_for(&mut self, len: usize) {
        let sets = (5 * len).div_ceil(16).max(1);
        if self.sets.len() * 4 < sets * 3 || self.sets.len() * 3 > sets * 4 {
            self.sets = vec![[EMPTY; 4]; sets].into();
        }
    }
}

/// Position and fingerprint of a key's ghost.
struct GhostPlace {
    set: usize,
    fingerprint: u16,
    is_long_term: bool,
}

impl GhostPlace {
    fn of(hash: u64, sets: usize) -> Self {
        // Mixed, because keys of one shard share some bits, and a user's hasher may be poor.
        let hash = mix(hash);
        Self {
            set: (((hash >> 32) * sets as u64) >> 32) as usize,
            fingerprint: (hash >> 16) as u16,
            is_long_term: hash & 15 == 0,
        }
    }

    /// Encodes a ghost. From the lowest bits: time and class of the access word, a bit that is always set, the
    /// fingerprint.
    fn ghost(&self, access_word: AccessWord) -> u32 {
        u32::from(self.fingerprint) << 16
            | 1 << 15
            | u32::from(access_word.class()) << 8
            | u32::from(access_word.last_access())
    }

    fn access_word(ghost: u32) -> AccessWord {
        AccessWord::new(ghost as u8, (ghost >> 8 & 15) as u8)
    }

    /// Returns whether a ghost is that of this key. One comparison, as no branch predictor can learn which are empty.
    fn matches(&self, ghost: u32) -> bool {
        ghost >> 15 == u32::from(self.fingerprint) << 1 | 1
    }
}
