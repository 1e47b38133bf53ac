//! Who leaves a bounded shard: of some neighbours the one whose next hit costs the most room and time.
//!
//! 1. A bucket has a word of two bytes: when its entry was last asked for, and how it was asked for before. A hit
//!    changes no more than this. That of an empty bucket is zero, so who looks for a victim looks at words alone.
//! 2. Time is counted in what came into the shard, in parts of its size: so nobody reads a clock, a shard at rest
//!    doesn't age, and shards of all sizes share what they learn.
//! 3. Nobody is refused: what came last leaves sooner than others, but not before another comes.
//! 4. Memory follows the number of entries, whatever comes and goes.

mod access_word;
mod ghosts;
mod hit_model;
#[cfg(test)]
mod tests;

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use self::{
    access_word::{AccessWord, CLOCK_PARTS, MAX_ELAPSED},
    ghosts::Ghosts,
    hit_model::{HitModel, Observation},
};

/// So many living neighbours are looked at for a victim.
const SAMPLE: usize = 16;

/// In a table with few entries not all of it is looked at, once one is found.
const MAX_SCAN: usize = 8 * SAMPLE;

/// So many of those that were nearly chosen are thought of the next time, which is worth as much as a sample twice
/// as large.
const RUNNER_UPS: usize = 2;

/// The second of a sample leaves without another look where it is worth an eighth more at most: in the bits of an
/// `f32`.
const NEAR_TIE: u64 = 1 << 20;

/// In a rank, below the worth.
const ELAPSED_BITS: u32 = 8;

/// What is told at a time to those who share the experience, at most.
const MAX_PENDING: usize = 64;

/// The policy of one shard, under whose lock it is: for writing where it is `mut`, else for reading.
pub(super) struct Policy {
    access_words: AccessWords,
    ghosts: Ghosts,
    /// Now, in parts of the size of the shard.
    clock: u8,
    /// How many came in this part.
    inserts: usize,
    /// The bucket that is looked at next.
    cursor: usize,
    runner_ups: [usize; RUNNER_UPS],
    /// Who leaves next, unless asked for meanwhile, and its word: one look at a sample may do for two.
    preselected: Option<(usize, u16)>,
    /// A state of xorshift, never zero.
    random: u64,
    hit_model: Arc<HitModel>,
    pending: Vec<Observation>,
    observed: usize,
}

/// What is known of each bucket of a table.
pub(super) type AccessWords = Box<[AtomicU16]>;

/// Who is in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketState {
    /// One who would give no room.
    Weightless,
    Expired,
    Live,
}

/// Those who may leave, in their order: who is worth the least, and then the oldest.
struct Candidates {
    ranks: [u64; RUNNER_UPS + 2],
    buckets: [usize; RUNNER_UPS + 2],
}

/// No bucket.
const NO_BUCKET: usize = usize::MAX;

impl Policy {
    /// Of the first shard of a cache. The same seed and the same calls choose the same victims.
    pub(super) fn new(seed: u64) -> Self {
        Self::with_model(seed, Arc::new(HitModel::new()))
    }

    /// Of another shard of the same cache: what one of them learns, all know.
    pub(super) fn for_another_shard(&self, seed: u64) -> Self {
        Self::with_model(seed, Arc::clone(&self.hit_model))
    }

    fn with_model(seed: u64, hit_model: Arc<HitModel>) -> Self {
        Self {
            access_words: Box::default(),
            ghosts: Ghosts::default(),
            clock: 0,
            inserts: 0,
            cursor: 0,
            runner_ups: [NO_BUCKET; RUNNER_UPS],
            preselected: None,
            random: seed | 1,
            hit_model,
            pending: Vec::new(),
            observed: 0,
        }
    }

    /// A hit. Under the lock for reading: others may do the same at the same time, and one of two may be lost.
    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        let Some(access_word) = self.access_words.get(bucket) else { return };
        let before = access_word.load(Relaxed);
        let after = AccessWord(before).touched(self.clock).0;
        if after != before {
            access_word.store(after, Relaxed);
        }
    }

    /// The table has so many buckets now. Gives out what was known of the old ones, for [`relocate`](Self::relocate).
    pub(super) fn resize(&mut self, buckets: usize) -> AccessWords {
        self.cursor = 0;
        self.runner_ups = [NO_BUCKET; RUNNER_UPS];
        self.preselected = None;
        mem::replace(&mut self.access_words, (0..buckets).map(|_| AtomicU16::new(0)).collect())
    }

    /// An entry has moved from a bucket of the old table to one of the new.
    pub(super) fn relocate(&mut self, old: &AccessWords, from: usize, to: usize) {
        *self.access_words[to].get_mut() = old[from].load(Relaxed);
    }

    /// A key that was not there has come into this bucket; there are `len` with it.
    pub(super) fn inserted(&mut self, bucket: usize, hash: u64, len: usize) {
        self.inserts += 1;
        if self.inserts * CLOCK_PARTS >= len {
            self.inserts = 0;
            self.clock = self.clock.wrapping_add(1);
        }
        let access_word = match self.ghosts.take(hash) {
            None => AccessWord::fresh(self.clock),
            Some(ghost) => self.learn_hit(ghost.touched(self.clock)),
        };
        *self.access_words[bucket].get_mut() = access_word.0;
    }

    /// What was in this bucket has left, but not to make room.
    pub(super) fn departed(&mut self, bucket: usize) {
        let access_word = self.current(bucket);
        self.learn(Observation::Loss(access_word.class(), access_word.age(self.clock)));
        *self.access_words[bucket].get_mut() = 0;
    }

    /// Who has to leave; never who is in the bucket `exempt`. One who is dead, if there is one nearby. `look` is asked
    /// of buckets that are not empty. Where nobody `may_be_dead`, it need not be asked.
    #[inline]
    pub(super) fn victim(
        &mut self,
        exempt: Option<usize>,
        may_have_unreadable: bool,
        mut state_of: impl FnMut(usize) -> BucketState,
    ) -> Option<usize> {
        if let Some((bucket, access_word)) = self.preselected.take()
            && !may_have_unreadable
            && *self.access_words[bucket].get_mut() == access_word
            && Some(bucket) != exempt
            && state_of(bucket) != BucketState::Weightless
        {
            return Some(bucket);
        }
        let mut candidates = Candidates::new();
        for bucket in self.runner_ups {
            if self
                .access_words
                .get_mut(bucket)
                .is_some_and(|access_word| *access_word.get_mut() != 0)
                && self.consider(bucket, exempt, &mut state_of, &mut candidates)
            {
                return Some(bucket);
            }
        }
        let (mut sampled, mut scanned) = (0, 0);
        // As long as there is nobody, all are looked at: those who would give no room count for nothing.
        while scanned < self.access_words.len()
            && (candidates.is_empty() || sampled < SAMPLE && scanned < MAX_SCAN)
        {
            let max_len = if candidates.is_empty() { SAMPLE } else { SAMPLE - sampled };
            let (sample, count, end) = self.sample(max_len);
            for &bucket in &sample[..count] {
                if self.consider(bucket as usize, exempt, &mut state_of, &mut candidates) {
                    return Some(bucket as usize);
                }
            }
            sampled += count;
            scanned += end - self.cursor;
            self.cursor = if end == self.access_words.len() { 0 } else { end };
        }
        let [first, next, rest @ ..] = candidates.buckets;
        self.runner_ups = rest;
        let is_near =
            candidates.ranks[1] >> ELAPSED_BITS <= (candidates.ranks[0] >> ELAPSED_BITS) + NEAR_TIE;
        self.preselected =
            (next != NO_BUCKET && is_near).then(|| (next, *self.access_words[next].get_mut()));
        (first != NO_BUCKET).then_some(first)
    }

    /// The next buckets that are not empty, at most so many, how many there are, and where it stopped. Nothing here
    /// branches on what is there: nobody can guess that.
    #[inline]
    fn sample(&mut self, max_len: usize) -> ([u32; SAMPLE + 1], usize, usize) {
        let mut sample = [0; SAMPLE + 1];
        let (mut count, mut end) = (0, self.cursor);
        let scan_end = self.access_words.len().min(self.cursor + MAX_SCAN);
        for access_word in &mut self.access_words[self.cursor..scan_end] {
            sample[count] = end as u32;
            count += usize::from(*access_word.get_mut() != 0);
            end += 1;
            if count == max_len {
                break;
            }
        }
        (sample, count, end)
    }

    /// Puts who is in this bucket among the least, if it may leave and belongs there; tells whether it is dead.
    #[inline]
    fn consider(
        &mut self,
        bucket: usize,
        exempt: Option<usize>,
        state_of: &mut impl FnMut(usize) -> BucketState,
        candidates: &mut Candidates,
    ) -> bool {
        if Some(bucket) == exempt {
            return false;
        }
        match state_of(bucket) {
            BucketState::Weightless => return false,
            BucketState::Expired => return true,
            BucketState::Live => {}
        }
        let access_word = self.current(bucket);
        let worth = self.hit_model.worth(access_word.class(), access_word.age(self.clock));
        let younger = u64::from(u8::MAX - access_word.elapsed(self.clock));
        candidates.put(u64::from(worth) << ELAPSED_BITS | younger, bucket);
        false
    }

    /// The victim, whose key has this hash, was alive and has left; there were `len` with it.
    pub(super) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) {
        let access_word = AccessWord(mem::take(self.access_words[bucket].get_mut()));
        if let Some(forgotten) = self.ghosts.insert(hash, access_word, len) {
            self.learn(Observation::Loss(forgotten.class(), forgotten.age(self.clock)));
        }
    }

    /// Whether a key that is not there was evicted lately: with more room it would be.
    pub(super) fn was_evicted_recently(&self, hash: u64) -> bool {
        self.ghosts.contains(hash)
    }

    /// What is allocated for this shard.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.access_words)
            + self.ghosts.bytes()
            + self.pending.capacity() * size_of::<Observation>()
    }

    /// The word of this bucket, once what was hit since it was last looked at is learnt from.
    #[inline]
    fn current(&mut self, bucket: usize) -> AccessWord {
        let access_word = AccessWord(*self.access_words[bucket].get_mut());
        if access_word.gap().is_none() && access_word.elapsed(self.clock) <= MAX_ELAPSED {
            return access_word;
        }
        let current = self.learn_hit(access_word).clamped(self.clock);
        *self.access_words[bucket].get_mut() = current.0;
        current
    }

    #[cold]
    fn learn_hit(&mut self, access_word: AccessWord) -> AccessWord {
        let Some(gap) = access_word.gap() else { return access_word };
        self.learn(Observation::Hit(access_word.class(), gap));
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        access_word.settled((self.random >> 63) as u8)
    }

    fn learn(&mut self, observation: Observation) {
        self.pending.push(observation);
        // At first each teaches much, and is told soon. Where another tells just now, nobody waits: what is not told is
        // lost, and there is always more.
        if self.pending.len() >= MAX_PENDING.min(1 + self.observed / 16) {
            self.observed += self.pending.len();
            self.hit_model.add(&self.pending);
            self.pending.clear();
        }
    }
}

impl Candidates {
    fn new() -> Self {
        Self { ranks: [u64::MAX; RUNNER_UPS + 2], buckets: [NO_BUCKET; RUNNER_UPS + 2] }
    }

    fn is_empty(&self) -> bool {
        self.buckets[0] == NO_BUCKET
    }

    /// Puts one in its order; the last falls out. Who comes first stays before its equals.
    #[inline]
    fn put(&mut self, rank: u64, bucket: usize) {
        let Self { ranks, buckets } = self;
        if rank >= ranks[RUNNER_UPS + 1] {
            return;
        }
        // From the last to the first, and without a branch: each that is behind goes one further.
        for at in (0..RUNNER_UPS + 2).rev() {
            let before = at.saturating_sub(1);
            let moves = at > 0 && rank < ranks[before];
            let stays = rank >= ranks[at];
            let (new_rank, new_bucket) =
                if moves { (ranks[before], buckets[before]) } else { (rank, bucket) };
            ranks[at] = if stays { ranks[at] } else { new_rank };
            buckets[at] = if stays { buckets[at] } else { new_bucket };
        }
    }
}
