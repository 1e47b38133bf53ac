//! Eviction policy of one shard: evicts the entry with the fewest expected hits per unit of time from a sample of
//! neighboring buckets.
//!
//! 1. Each bucket has an access word of 16 bits: the time of the last access, the gap before it, and a class of past
//!    gaps. A hit changes nothing else. The word of an empty bucket is zero, so the search for a victim reads only
//!    words.
//! 2. Time is counted in inserts, in units of a fraction of the shard's size. So no clock is read, an idle shard does
//!    not age, and shards of all sizes can share one hit model.
//! 3. A new entry is always admitted. It may be evicted sooner than others, but not before the next insert.
//! 4. A read entry is evicted in place of an unread one only if the hit model rates it lower *and* the shard has
//!    [`Credit`], which the first read of any key earns. While none of the new keys is read, the model has no evidence
//!    about them, and must not decide: so a scan evicts no read entry, apart from the little credit left from earlier.
//! 5. The first eviction learns from all residents: which of them were read, and which were not.
//! 6. Memory is proportional to the number of entries, for any workload.

mod credit;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use self::credit::Credit;
use super::{
    access_word::{AccessWord, MAX_ELAPSED},
    ghosts::Ghosts,
    hit_model::{HitModel, Observation},
    insert_clock::InsertClock,
};

/// Number of live neighbors that are compared to choose a victim.
const SAMPLE: usize = 16;

/// Maximum number of buckets that are scanned once a candidate has been found, for tables with few entries.
const MAX_SCAN: usize = 8 * SAMPLE;

/// Number of candidates that are compared again the next time. Worth as much as a sample twice as large.
const RUNNER_UPS: usize = 2;

/// Bit of a rank above all others, which is set for read entries as long as unread ones are to be evicted first.
const PROTECTED: u64 = 1 << 63;

/// Position of the worth in a rank: below [`PROTECTED`], and above the time since the last access and the bucket.
const WORTH_SHIFT: u32 = u8::BITS + u32::BITS;

/// Number of low bits of a worth that do not fit into a rank.
const DROPPED_WORTH_BITS: u32 = 8;

/// The second candidate becomes the next victim without another sample if it is worth at most an eighth more than the
/// first. Difference between two ranks, of the bits of their `f32`.
const NEAR_TIE: u64 = 1 << (20 - DROPPED_WORTH_BITS + WORTH_SHIFT);

/// Maximum number of observations that are collected before they are added to the shared hit model.
const MAX_PENDING: usize = 64;

/// Maximum number of buckets whose entries the first eviction learns from.
const MAX_CENSUS: usize = 2_048;

/// The policy of one shard, guarded by the shard's lock: `&mut self` needs the write lock, `&self` the read lock.
pub(crate) struct Policy {
    access_words: AccessWords,
    ghosts: Ghosts,
    clock: InsertClock,
    /// The bucket at which the next sample begins.
    cursor: usize,
    runner_ups: [usize; RUNNER_UPS],
    /// The buckets of the last two inserts. The later one that may be evicted is compared in each sample. In a loop or a
    /// scan it is the best victim, so that the other entries stay.
    newest: [usize; 2],
    /// Number of entries at the last insert.
    len: usize,
    /// The next victim, unless it is accessed until then: one sample may serve two evictions.
    preselected: Option<Preselected>,
    credit: Credit,
    /// State of a xorshift generator, never zero.
    random: u64,
    hit_model: Arc<HitModel>,
    pending: Vec<Observation>,
    observed: usize,
    /// True once the hit model has learned from the entries that were resident at the first eviction.
    has_census: bool,
}

/// The access words of a table, by bucket.
pub(crate) type AccessWords = Box<[AtomicU16]>;

/// State of a full bucket, as seen by an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketState {
    /// Live, but of weight 0, so that evicting it frees nothing.
    Weightless,
    /// Expired, or removed by a tag.
    Expired,
    Live,
}

/// The best candidates for eviction, in order: the least worth first, and of equals the oldest.
struct Candidates {
    /// From the highest bit: [`PROTECTED`], the worth, the time since the last access, and the bucket. So the order of
    /// two candidates takes one comparison.
    ranks: [u64; RUNNER_UPS + 2],
    /// [`PROTECTED`] if read entries are protected, else 0. Determined once per sample, which costs less.
    protected: u64,
}

#[derive(Clone, Copy)]
struct Preselected {
    bucket: usize,
    access_word: u16,
    takes_credit: bool,
}

/// Stands for no bucket.
const NO_BUCKET: usize = usize::MAX;

impl Policy {
    /// Returns the policy of the first shard of a cache. The same seed and the same calls choose the same victims.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_model(seed, Arc::new(HitModel::new()))
    }

    /// Returns the policy of another shard of the same cache, which shares the hit model.
    pub(crate) fn for_another_shard(&self, seed: u64) -> Self {
        Self::with_model(seed, Arc::clone(&self.hit_model))
    }

    fn with_model(seed: u64, hit_model: Arc<HitModel>) -> Self {
        Self {
            access_words: Box::default(),
            ghosts: Ghosts::default(),
            clock: InsertClock::default(),
            cursor: 0,
            runner_ups: [NO_BUCKET; RUNNER_UPS],
            newest: [NO_BUCKET; 2],
            len: 0,
            preselected: None,
            credit: Credit::default(),
            random: seed | 1,
            hit_model,
            pending: Vec::new(),
            observed: 0,
            has_census: false,
        }
    }

    /// Records a hit. Needs only the read lock: concurrent hits may overwrite each other, and one of two may be lost.
    #[inline]
    pub(crate) fn touch(&self, bucket: usize) {
        let Some(access_word) = self.access_words.get(bucket) else { return };
        let before = access_word.load(Relaxed);
        let after = AccessWord(before).touched(self.clock.now()).0;
        if after != before {
            access_word.store(after, Relaxed);
        }
    }

    /// Adapts to a new table of `buckets` buckets. Returns the access words of the old one, for
    /// [`relocate`](Self::relocate).
    pub(crate) fn resize(&mut self, buckets: usize) -> AccessWords {
        self.cursor = 0;
        self.runner_ups = [NO_BUCKET; RUNNER_UPS];
        self.newest = [NO_BUCKET; 2];
        self.preselected = None;
        mem::replace(&mut self.access_words, (0..buckets).map(|_| AtomicU16::new(0)).collect())
    }

    /// Moves the access word of an entry from a bucket of the old table to one of the new.
    pub(crate) fn relocate(&mut self, old: &AccessWords, from: usize, to: usize) {
        *self.access_words[to].get_mut() = old[from].load(Relaxed);
    }

    /// Records the insert of a new key into `bucket`, as one of `len` entries.
    pub(crate) fn inserted(&mut self, bucket: usize, hash: u64, len: usize) {
        (self.newest, self.len) = ([bucket, self.newest[0]], len);
        if self.clock.inserted(len) {
            self.credit.expire();
        }
        let now = self.clock.now();
        let access_word = match self.ghosts.take(hash) {
            None => AccessWord::fresh(now),
            Some(ghost) => {
                if ghost.class() == 0 {
                    self.credit.earn_by_return(len);
                }
                self.learn_hit(ghost.touched(now))
            }
        };
        *self.access_words[bucket].get_mut() = access_word.0;
    }

    /// Forgets the entry of `bucket`, which departed without being evicted.
    pub(crate) fn departed(&mut self, bucket: usize) {
        let access_word = self.current(bucket);
        self.learn(Observation::Loss(access_word.class(), access_word.age(self.clock.now())));
        *self.access_words[bucket].get_mut() = 0;
    }

    /// Chooses a victim, but never an `exempt` bucket. Prefers an unreadable entry if the sample has one. `state_of`
    /// is called only for full buckets; if none `may_have_unreadable`, it may be skipped for the preselected one. If it
    /// `may_decline`, chooses none if the sample has only read entries, and the shard no credit for one.
    #[inline]
    pub(crate) fn victim<const N: usize>(
        &mut self,
        exempt: [Option<usize>; N],
        may_decline: bool,
        may_have_unreadable: bool,
        mut state_of: impl FnMut(usize) -> BucketState,
    ) -> Option<usize> {
        if let Some(Preselected { bucket, access_word, takes_credit }) = self.preselected.take()
            && !may_have_unreadable
            && *self.access_words[bucket].get_mut() == access_word
            && !exempt.contains(&Some(bucket))
            && (!takes_credit || self.credit.is_enough())
            && state_of(bucket) != BucketState::Weightless
        {
            if takes_credit {
                self.credit.spend();
            }
            return Some(bucket);
        }
        if !self.has_census {
            self.take_census();
        }
        let mut candidates = Candidates::new(!self.credit.is_enough());
        let [first, next] = self.runner_ups;
        let [last, earlier] = self.newest;
        let newest = if exempt.contains(&Some(last)) { earlier } else { last };
        let is_new = newest != first && newest != next;
        for bucket in [first, next, if is_new { newest } else { NO_BUCKET }] {
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
        // Until a candidate has been found, all buckets are scanned: weightless entries do not count.
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
        let [first_rank, next_rank, ..] = candidates.ranks;
        if may_decline && first_rank >= PROTECTED {
            return None;
        }
        let [first, next, rest @ ..] = candidates.ranks.map(Candidates::bucket);
        self.runner_ups = rest;
        if first == NO_BUCKET {
            return None;
        }
        let takes_credit = candidates.protected == 0;
        let is_near = next_rank >> WORTH_SHIFT <= (first_rank + NEAR_TIE) >> WORTH_SHIFT;
        self.preselected = (next != NO_BUCKET && is_near).then(|| Preselected {
            bucket: next,
            access_word: *self.access_words[next].get_mut(),
            takes_credit: takes_credit && self.is_read(next),
        });
        if takes_credit && self.is_read(first) {
            self.credit.spend();
        }
        Some(first)
    }

    /// Returns whether the entry in `bucket`, whose hits have been learnt from, was read.
    fn is_read(&mut self, bucket: usize) -> bool {
        AccessWord(*self.access_words[bucket].get_mut()).is_read()
    }

    /// Learns from the entries that are resident when the shard is full for the first time. Hits are learnt when an
    /// entry is visited, but losses only once its ghost is forgotten, which is long after the first eviction. Until
    /// then, the model would take it that all new entries are read.
    #[cold]
    fn take_census(&mut self) {
        let (now, entries) = (self.clock.now(), self.entries());
        let access_words = &mut self.access_words;
        // If another shard is learning at the moment, this shard tries again at the next eviction.
        self.has_census = self.hit_model.add_all(entries, |add| {
            for access_word in access_words.iter_mut().take(MAX_CENSUS).map(AtomicU16::get_mut) {
                let resident = AccessWord(*access_word);
                match resident.gap() {
                    Some(gap) => {
                        add(Observation::Hit(resident.class(), gap));
                        *access_word = resident.settled(0).0;
                    }
                    None if *access_word != 0 => {
                        add(Observation::Loss(resident.class(), resident.age(now)));
                    }
                    None => {}
                }
            }
        });
    }

    /// Returns the next full buckets, up to `max_len`, their number, and the bucket at which the scan stopped. Nothing
    /// here branches on whether a bucket is full, which no branch predictor can learn.
    #[inline]
    fn sample(&mut self, max_len: usize) -> ([u32; 2 * SAMPLE], usize, usize) {
        let mut sample = [0; 2 * SAMPLE];
        let (mut count, mut end) = (0, self.cursor);
        let scan_end = self.access_words.len().min(self.cursor + MAX_SCAN);
        for access_word in &mut self.access_words[self.cursor..scan_end] {
            // `count` is at most `SAMPLE`. The remainder takes fewer instructions than a check of the index.
            sample[count % (2 * SAMPLE)] = end as u32;
            count += usize::from(*access_word.get_mut() != 0);
            end += 1;
            if count == max_len {
                break;
            }
        }
        (sample, count, end)
    }

    /// Adds the entry in `bucket` to the candidates if it may be evicted and is good enough. Returns whether it is
    /// expired.
    #[inline]
    fn consider<const N: usize>(
        &mut self,
        bucket: usize,
        exempt: [Option<usize>; N],
        state_of: &mut impl FnMut(usize) -> BucketState,
        candidates: &mut Candidates,
    ) -> bool {
        if exempt.contains(&Some(bucket)) {
            return false;
        }
        match state_of(bucket) {
            BucketState::Weightless => return false,
            BucketState::Expired => return true,
            BucketState::Live => {}
        }
        let access_word = self.current(bucket);
        let age = access_word.age(self.clock.now());
        let worth = self.hit_model.worth(access_word.stored_class(), age);
        let younger = u8::MAX - access_word.elapsed(self.clock.now());
        let protected = if access_word.is_read() { candidates.protected } else { 0 };
        candidates.put(
            protected
                | u64::from(worth >> DROPPED_WORTH_BITS) << WORTH_SHIFT
                | u64::from(younger) << u32::BITS
                | bucket as u64,
        );
        false
    }

    /// Forgets the live victim in `bucket`, and remembers its key by a ghost. The shard has `len` entries without it.
    pub(crate) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) {
        let access_word = AccessWord(mem::take(self.access_words[bucket].get_mut()));
        if let Some(forgotten) = self.ghosts.insert(hash, access_word, len) {
            self.learn(Observation::Loss(forgotten.class(), forgotten.age(self.clock.now())));
        }
    }

    /// Returns the number of entries at the last insert.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether a missing key was evicted recently: a larger cache would have had it.
    pub(crate) fn was_evicted_recently(&self, hash: u64) -> bool {
        self.ghosts.contains(hash)
    }

    /// Returns the memory allocated for this shard.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.access_words)
            + self.ghosts.bytes()
            + self.pending.capacity() * size_of::<Observation>()
    }

    /// Returns the access word of a bucket, after a hit that was not learnt from has been added to the model.
    #[inline]
    fn current(&mut self, bucket: usize) -> AccessWord {
        let access_word = AccessWord(*self.access_words[bucket].get_mut());
        if access_word.gap().is_none() && access_word.elapsed(self.clock.now()) <= MAX_ELAPSED {
            return access_word;
        }
        if access_word.class() == 0 && access_word.gap().is_some() {
            self.credit.earn(self.len);
        }
        let current = self.learn_hit(access_word).clamped(self.clock.now());
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

    /// Returns the number of entries of the cache, estimated from this shard: all shards share the hit model.
    fn entries(&self) -> usize {
        self.len * Arc::strong_count(&self.hit_model)
    }

    fn learn(&mut self, observation: Observation) {
        self.pending.push(observation);
        // At first each observation matters, so it is added soon. If another shard is adding at the moment, the
        // observations are dropped instead of waiting: there are always more.
        if self.pending.len() >= MAX_PENDING.min(1 + self.observed / 16) {
            self.observed += self.pending.len();
            self.hit_model.add(&self.pending, self.entries());
            self.pending.clear();
        }
    }
}

impl Candidates {
    fn new(protects_read: bool) -> Self {
        let protected = if protects_read { PROTECTED } else { 0 };
        Self { ranks: [u64::MAX; RUNNER_UPS + 2], protected }
    }

    fn is_empty(&self) -> bool {
        self.ranks[0] == u64::MAX
    }

    /// Inserts a candidate in order; the last one drops out.
    #[inline]
    fn put(&mut self, mut rank: u64) {
        if rank < self.ranks[RUNNER_UPS + 1] {
            for better in &mut self.ranks {
                (*better, rank) = ((*better).min(rank), (*better).max(rank));
            }
        }
    }

    /// Returns the bucket of a candidate.
    fn bucket(rank: u64) -> usize {
        if rank == u64::MAX { NO_BUCKET } else { rank as u32 as usize }
    }
}
