//! Who was evicted lately, and what was known of them: four bytes each, in sets of four, as many as a shard has
//! entries and a quarter more.
//!
//! One place of each set is for one key of sixteen, chosen by its hash: so of some of all keys it is known for far
//! longer whether they come back, and what is rare or goes round in long loops is learnt too.

use std::mem;

use super::access_word::AccessWord;

/// One after the other, the newest first; the last is for the few that are remembered for long.
type Set = [u32; 4];

const NO_BUCKET: u32 = 0;

#[derive(Default)]
pub(super) struct Ghosts(Box<[Set]>);

impl Ghosts {
    /// Tells who is forgotten for it. `len`: how many entries there are.
    pub(super) fn remember(
        &mut self,
        hash: u64,
        access_word: AccessWord,
        len: usize,
    ) -> Option<AccessWord> {
        self.fit(len);
        let place = Place::of(hash, self.0.len());
        let set = &mut self.0[place.set];
        let forgotten = if place.is_remembered_long {
            mem::replace(&mut set[3], place.ghost(access_word))
        } else {
            let forgotten = set[2];
            set[..3].rotate_right(1);
            set[0] = place.ghost(access_word);
            forgotten
        };
        (forgotten != NO_BUCKET).then(|| Place::access_word(forgotten))
    }

    /// What was known of a key that comes back.
    pub(super) fn take(&mut self, hash: u64) -> Option<AccessWord> {
        if self.0.is_empty() {
            return None;
        }
        let place = Place::of(hash, self.0.len());
        let ghost = self.0[place.set].iter_mut().find(|ghost| place.is(**ghost))?;
        Some(Place::access_word(mem::replace(ghost, NO_BUCKET)))
    }

    pub(super) fn knows(&self, hash: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let place = Place::of(hash, self.0.len());
        self.0[place.set].iter().any(|ghost| place.is(*ghost))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Where the shard has become much larger or smaller, all are forgotten.
    fn fit(&mut self, len: usize) {
        let wanted = (5 * len).div_ceil(16).max(1);
        if self.0.len() * 4 < wanted * 3 || self.0.len() * 3 > wanted * 4 {
            self.0 = vec![[NO_BUCKET; 4]; wanted].into();
        }
    }
}

/// Where the ghost of a key is, and by what it is known.
struct Place {
    set: usize,
    print: u16,
    is_remembered_long: bool,
}

impl Place {
    fn of(hash: u64, sets: usize) -> Self {
        let hash = mixed(hash);
        Self {
            set: (((hash >> 32) * sets as u64) >> 32) as usize,
            print: (hash >> 16) as u16,
            is_remembered_long: hash & 15 == 0,
        }
    }

    /// From the lowest bits: the time and the class of a word, a bit that says that it is somebody, the print.
    fn ghost(&self, access_word: AccessWord) -> u32 {
        u32::from(self.print) << 16
            | 1 << 15
            | u32::from(access_word.class()) << 8
            | u32::from(access_word.last_access())
    }

    fn access_word(ghost: u32) -> AccessWord {
        AccessWord::new(ghost as u8, (ghost >> 8 & 15) as u8)
    }

    fn is(&self, ghost: u32) -> bool {
        ghost != NO_BUCKET && ghost >> 16 == u32::from(self.print)
    }
}

/// Bits that depend on all bits: those of one shard share some, and a user's hasher may be poor.
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}
