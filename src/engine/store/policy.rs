//! Who leaves a bounded shard: of some neighbours the one whose next hit costs the most room and time.
//!
//! 1. A bucket has a word of two bytes: when its entry was last asked for, and how it was asked for before. A hit
//!    changes no more than this. A word tells nothing of a bucket that is empty.
//! 2. Time is counted in what came into the shard, in parts of its size: so nobody reads a clock, a shard at rest
//!    doesn't age, and shards of all sizes share what they learn.
//! 3. Nobody is refused: what came last leaves sooner than others, but not before another comes.
//! 4. Memory follows the number of entries, whatever comes and goes.

mod experience;
mod ghosts;
#[cfg(test)]
mod tests;
mod word;

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use self::{
    experience::{Ending, Experience},
    ghosts::Ghosts,
    word::{CLOCK_PARTS, OLDEST, Word},
};

/// So many living neighbours are looked at for a victim.
const SAMPLE: usize = 16;

/// In a table with few entries not all of it is looked at, once one is found.
const FARTHEST: usize = 8 * SAMPLE;

/// So many of those that were nearly chosen are thought of the next time, which is worth as much as a sample twice
/// as large.
const STANDBY: usize = 2;

/// What is told at a time to those who share the experience.
const BATCH: usize = 32;

/// The policy of one shard, under whose lock it is: for writing where it is `mut`, else for reading.
pub(super) struct Policy {
    words: Words,
    ghosts: Ghosts,
    /// Now, in parts of the size of the shard.
    clock: u8,
    /// How many came in this part.
    came: usize,
    /// The bucket that is looked at next.
    cursor: usize,
    standby: [Option<usize>; STANDBY],
    /// A state of xorshift, never zero.
    random: u64,
    experience: Arc<Experience>,
    untold: Vec<Ending>,
}

/// What is known of each bucket of a table.
pub(super) type Words = Box<[AtomicU16]>;

/// What is in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Empty,
    Dead,
    Live,
}

/// One who may leave: the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    worth: u32,
    youth: u8,
    bucket: usize,
}

impl Policy {
    /// Of the first shard of a cache. The same seed and the same calls choose the same victims.
    pub(super) fn new(seed: u64) -> Self {
        Self::learning(seed, Arc::new(Experience::new()))
    }

    /// Of another shard of the same cache: what one of them learns, all know.
    pub(super) fn another(&self, seed: u64) -> Self {
        Self::learning(seed, Arc::clone(&self.experience))
    }

    fn learning(seed: u64, experience: Arc<Experience>) -> Self {
        Self {
            words: Box::default(),
            ghosts: Ghosts::default(),
            clock: 0,
            came: 0,
            cursor: 0,
            standby: [None; STANDBY],
            random: seed | 1,
            experience,
            untold: Vec::new(),
        }
    }

    /// A hit. Under the lock for reading: others may do the same at the same time, and one of two may be lost.
    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        let Some(word) = self.words.get(bucket) else { return };
        let before = word.load(Relaxed);
        let after = Word(before).touched(self.clock).0;
        if after != before {
            word.store(after, Relaxed);
        }
    }

    /// The table has so many buckets now. Gives out what was known of the old ones, for [`relocate`](Self::relocate).
    pub(super) fn resize(&mut self, buckets: usize) -> Words {
        self.cursor = 0;
        self.standby = [None; STANDBY];
        mem::replace(&mut self.words, (0..buckets).map(|_| AtomicU16::new(0)).collect())
    }

    /// An entry has moved from a bucket of the old table to one of the new.
    pub(super) fn relocate(&mut self, old: &Words, from: usize, to: usize) {
        *self.words[to].get_mut() = old[from].load(Relaxed);
    }

    /// A key that was not there has come into this bucket; there are `len` with it.
    pub(super) fn inserted(&mut self, bucket: usize, hash: u64, len: usize) {
        self.came += 1;
        if self.came * CLOCK_PARTS >= len {
            self.came = 0;
            self.clock = self.clock.wrapping_add(1);
        }
        let word = match self.ghosts.take(hash) {
            None => Word::fresh(self.clock),
            Some(ghost) => self.learn_hit(ghost.touched(self.clock)),
        };
        *self.words[bucket].get_mut() = word.0;
    }

    /// What was in this bucket has left, but not to make room. Who doesn't tell of it only teaches less.
    pub(super) fn left(&mut self, bucket: usize) {
        let word = self.current(bucket);
        self.learn(Ending::Loss(word.class(), word.age(self.clock)));
        *self.words[bucket].get_mut() = 0;
    }

    /// Who has to leave; never who is in the bucket `spared`. One who is dead, if there is one nearby.
    pub(super) fn victim(
        &mut self,
        buckets: usize,
        spared: Option<usize>,
        mut look: impl FnMut(usize) -> Look,
    ) -> Option<usize> {
        let mut least = [None; STANDBY + 1];
        let standby = self.standby;
        for bucket in standby.into_iter().flatten().filter(|bucket| Some(*bucket) != spared) {
            match look(bucket) {
                Look::Empty => {}
                Look::Dead => return Some(bucket),
                Look::Live => insert(&mut least, self.candidate(bucket)),
            }
        }
        let mut seen = 0;
        for steps in 0..buckets.min(self.words.len()) {
            if seen == SAMPLE || steps >= FARTHEST && least[0].is_some() {
                break;
            }
            let bucket = self.cursor;
            self.cursor = (bucket + 1) % self.words.len();
            if Some(bucket) == spared || standby.contains(&Some(bucket)) {
                continue;
            }
            match look(bucket) {
                Look::Empty => {}
                Look::Dead => return Some(bucket),
                Look::Live => {
                    seen += 1;
                    insert(&mut least, self.candidate(bucket));
                }
            }
        }
        let [first, rest @ ..] = least.map(|least| least.map(|candidate| candidate.bucket));
        self.standby = rest;
        first
    }

    /// The victim, whose key has this hash, was alive and has left; there were `len` with it.
    pub(super) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) {
        let word = Word(mem::take(self.words[bucket].get_mut()));
        if let Some(forgotten) = self.ghosts.remember(hash, word, len) {
            self.learn(Ending::Loss(forgotten.class(), forgotten.age(self.clock)));
        }
    }

    /// Whether a key that is not there was evicted lately: with more room it would be.
    pub(super) fn was_evicted_lately(&self, hash: u64) -> bool {
        self.ghosts.knows(hash)
    }

    /// What is allocated for this shard.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
            + self.ghosts.bytes()
            + self.untold.capacity() * size_of::<Ending>()
    }

    fn candidate(&mut self, bucket: usize) -> Candidate {
        let word = self.current(bucket);
        let age = word.age(self.clock);
        let worth = self.experience.worth(word.class(), age);
        Candidate { worth, youth: OLDEST - word.elapsed(self.clock).min(OLDEST), bucket }
    }

    /// The word of this bucket, once what was hit since it was last looked at is learnt from.
    fn current(&mut self, bucket: usize) -> Word {
        let word = Word(*self.words[bucket].get_mut());
        let current = self.learn_hit(word).not_older(self.clock);
        *self.words[bucket].get_mut() = current.0;
        current
    }

    fn learn_hit(&mut self, word: Word) -> Word {
        let Some(gap) = word.gap() else { return word };
        self.learn(Ending::Hit(word.class(), gap));
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        word.settled((self.random >> 63) as u8)
    }

    fn learn(&mut self, ending: Ending) {
        self.untold.push(ending);
        // Where another tells just now, nobody waits: what is not told is lost, and there is always more.
        if self.untold.len() == BATCH {
            self.experience.add(&self.untold);
            self.untold.clear();
        }
    }
}

/// Puts one in its order among the least; the greatest falls out.
fn insert(least: &mut [Option<Candidate>], mut candidate: Candidate) {
    for place in least {
        match place {
            None => return *place = Some(candidate),
            Some(other) if candidate < *other => mem::swap(other, &mut candidate),
            Some(_) => {}
        }
    }
}
