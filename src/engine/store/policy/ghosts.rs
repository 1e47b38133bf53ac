//! Who was evicted lately, and what was known of them: four bytes each, in sets of four, as many as a shard has
//! entries and a quarter more.
//!
//! One place of each set is for one key of sixteen, chosen by its hash: so of some of all keys it is known for far
//! longer whether they come back, and what is rare or goes round in long loops is learnt too.

use std::mem;

use super::access_word::AccessWord;

/// One after the other, the newest first; the last is for the few that are remembered for long.
type Set = [u32; 4];

const EMPTY: u32 = 0;

#[derive(Default)]
pub(super) struct Ghosts(Box<[Set]>);

impl Ghosts {
    /// Tells who is forgotten for it. `len`: how many entries there are.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        access_word: AccessWord,
        len: usize,
    ) -> Option<AccessWord> {
        self.resize_for(len);
        let slot = Slot::of(hash, self.0.len());
        let set = &mut self.0[slot.set];
        let displaced = if slot.is_long_term {
            mem::replace(&mut set[3], slot.ghost(access_word))
        } else {
            let displaced = set[2];
            set[..3].rotate_right(1);
            set[0] = slot.ghost(access_word);
            displaced
        };
        (displaced != EMPTY).then(|| Slot::access_word(displaced))
    }

    /// What was known of a key that comes back.
    pub(super) fn take(&mut self, hash: u64) -> Option<AccessWord> {
        if self.0.is_empty() {
            return None;
        }
        let slot = Slot::of(hash, self.0.len());
        let ghost = self.0[slot.set].iter_mut().find(|ghost| slot.matches(**ghost))?;
        Some(Slot::access_word(mem::replace(ghost, EMPTY)))
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let slot = Slot::of(hash, self.0.len());
        self.0[slot.set].iter().any(|ghost| slot.matches(*ghost))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Where the shard has become much larger or smaller, all are forgotten.
    fn resize_for(&mut self, len: usize) {
        let sets = (5 * len).div_ceil(16).max(1);
        if self.0.len() * 4 < sets * 3 || self.0.len() * 3 > sets * 4 {
            self.0 = vec![[EMPTY; 4]; sets].into();
        }
    }
}

/// Where the ghost of a key is, and by what it is known.
struct Slot {
    set: usize,
    fingerprint: u16,
    is_long_term: bool,
}

impl Slot {
    fn of(hash: u64, sets: usize) -> Self {
        let hash = mix(hash);
        Self {
            set: (((hash >> 32) * sets as u64) >> 32) as usize,
            fingerprint: (hash >> 16) as u16,
            is_long_term: hash & 15 == 0,
        }
    }

    /// From the lowest bits: the time and the class of a word, a bit that says that it is somebody, the print.
    fn ghost(&self, access_word: AccessWord) -> u32 {
        u32::from(self.fingerprint) << 16
            | 1 << 15
            | u32::from(access_word.class()) << 8
            | u32::from(access_word.last_access())
    }

    fn access_word(ghost: u32) -> AccessWord {
        AccessWord::new(ghost as u8, (ghost >> 8 & 15) as u8)
    }

    fn matches(&self, ghost: u32) -> bool {
        ghost != EMPTY && ghost >> 16 == u32::from(self.fingerprint)
    }
}

/// Bits that depend on all bits: those of one shard share some, and a user's hasher may be poor.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}
