//! Eviction policy of one shard: evicts the entry with the fewest expected hits per unit of time from a sample of
//! neighboring buckets, without those that are exempt or weigh nothing. Before the first eviction, it takes a census of
//! the entries, from which the model learns. A key that is inserted again soon resumes the history in its ghost.
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
mod rank;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::{
    mem, ptr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use smallvec::SmallVec;

use self::{
    credit::Credit,
    rank::{KEPT, Rank, Ranks},
};
use super::{
    access_word::{AccessWord, MAX_ELAPSED},
    ghosts::Ghosts,
    hit_model::{HitModel, Observation},
    insert_clock::InsertClock,
};
use crate::engine::shard::table::prefetch;

/// Number of live neighbors that are compared to choose a victim.
const SAMPLE: usize = 16;

/// Maximum number of buckets that are scanned once a candidate has been found, for tables with few entries.
const MAX_SCAN: usize = 8 * SAMPLE;

/// Number of access words in a line of the processor's cache.
const WORDS_PER_LINE: usize = 32;

/// Maximum number of evictions that one sample serves.
const SERVED: usize = KEPT - RUNNER_UPS;

/// Least number of entries of a shard for each eviction that a sample serves, if it serves more than two: the entries
/// that are inserted in the meantime must be a small part of the shard.
const ENTRIES_PER_SERVED: usize = 16;

/// Number of candidates that are compared again the next time. Worth as much as a sample twice as large.
const RUNNER_UPS: usize = 2;

/// Maximum number of buckets that are exempt from one eviction.
pub(crate) const MAX_EXEMPT: usize = 2;

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
    /// The buckets of the last two inserts. The later one that may be evicted is compared in each sample. In a loop or
    /// a scan it is the best victim, so that the other entries stay.
    newest: [usize; 2],
    /// Number of entries at the last insert.
    len: usize,
    /// The next victims, unless they are accessed until then. The first one comes last.
    preselected: SmallVec<[Preselected; SERVED]>,
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

/// Conditions for a victim, in addition to the accesses of the entries.
#[derive(Clone, Copy)]
pub(crate) struct Eligibility<'a> {
    /// Buckets that are not evicted.
    pub(crate) exempt: [Option<usize>; MAX_EXEMPT],
    /// Weights by bucket, if entries have any. Evicting an entry of weight 0 would free nothing.
    pub(crate) weights: Option<&'a [u32]>,
    /// Returns whether the entry of a full bucket is unreadable: expired, or removed by a tag. `None` if none is.
    pub(crate) is_unreadable: Option<&'a dyn Fn(usize) -> bool>,
    /// True if no victim is chosen when the sample has only read entries, and the shard no credit for one.
    pub(crate) may_decline: bool,
}

/// Full buckets that are compared.
struct VictimSample {
    buckets: [u32; 4 * SAMPLE],
    len: usize,
}

#[derive(Clone, Copy)]
struct Preselected {
    rank: Rank,
    access_word: u16,
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
            preselected: SmallVec::new(),
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
        self.preselected.clear();
        mem::replace(&mut self.access_words, (0..buckets).map(|_| AtomicU16::new(0)).collect())
    }

    /// Moves the access word of an entry from a bucket of the old table to one of the new.
    pub(crate) fn relocate(&mut self, old: &AccessWords, from: usize, to: usize) {
        *self.access_words[to].get_mut() = old[from].load(Relaxed);
    }

    /// Prefetches the ghosts among which [`inserted`](Self::inserted) searches.
    #[inline]
    pub(crate) fn prefetch_ghost(&self, hash: u64) {
        self.ghosts.prefetch(hash);
    }

    /// Returns the next of the preselected victims.
    #[inline]
    pub(crate) fn next_victim(&self) -> Option<usize> {
        self.preselected.last().map(|next| next.rank.bucket())
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

    /// Chooses a victim. Prefers an unreadable entry if the sample has one.
    pub(crate) fn victim(&mut self, eligibility: Eligibility<'_>) -> Option<usize> {
        // An exempt bucket seems to be empty during the search, which so compares no list.
        let exempt = eligibility.exempt;
        let hidden = exempt.map(|bucket| bucket.map_or(0, |bucket| mem::take(self.word(bucket))));
        let victim = self.choose(&eligibility);
        for (bucket, hidden) in exempt.into_iter().zip(hidden) {
            if let Some(bucket) = bucket {
                *self.word(bucket) |= hidden;
            }
        }
        victim
    }

    fn choose(&mut self, eligibility: &Eligibility<'_>) -> Option<usize> {
        if eligibility.is_unreadable.is_none()
            && let Some(next) = self.next_preselected(eligibility)
        {
            return Some(next);
        }
        self.search(eligibility).or_else(|| self.next_preselected(eligibility))
    }

    /// Returns the next of the preselected victims that was not accessed since.
    #[inline]
    fn next_preselected(&mut self, eligibility: &Eligibility<'_>) -> Option<usize> {
        while let Some(Preselected { rank, access_word }) = self.preselected.last().copied() {
            if rank.is_protected() && eligibility.may_decline {
                return None;
            }
            self.preselected.pop();
            let bucket = rank.bucket();
            let takes_credit = !rank.is_protected() && self.is_read(bucket);
            if *self.word(bucket) == access_word
                && !eligibility.is_weightless(bucket)
                && (!takes_credit || self.credit.is_enough())
            {
                if takes_credit {
                    self.credit.spend();
                }
                return Some(bucket);
            }
        }
        None
    }

    /// Preselects the next victims from a new sample. Returns an unreadable entry, if the sample has one.
    fn search(&mut self, eligibility: &Eligibility<'_>) -> Option<usize> {
        if !self.has_census {
            self.take_census();
        }
        let protects_read = !self.credit.is_enough();
        let mut ranks = Ranks::new();
        let mut sample = self.earlier_candidates();
        let (mut sampled, mut scanned) = (0, 0);
        // Until a candidate has been found, all buckets are scanned: weightless entries do not count.
        while scanned < self.access_words.len()
            && (ranks.is_empty() || sampled < SAMPLE && scanned < MAX_SCAN)
        {
            let max_len = if ranks.is_empty() { SAMPLE } else { SAMPLE - sampled };
            let (count, end) = self.add_sample(&mut sample, max_len);
            if let Some(unreadable) = self.consider(&sample, eligibility, protects_read, &mut ranks)
            {
                return Some(unreadable);
            }
            sample.len = 0;
            sampled += count;
            scanned += end - self.cursor;
            self.cursor = if end == self.access_words.len() { 0 } else { end };
        }
        // The next search in a large shard would wait for its sample.
        for ahead in [0, WORDS_PER_LINE] {
            if let Some(access_word) = self.access_words.get(self.cursor + ahead) {
                prefetch(ptr::from_ref(access_word).cast());
            }
        }
        self.preselect(&ranks);
        None
    }

    /// Returns a sample of the runners-up of the last one, and of the later of the last two inserts that may be
    /// evicted.
    fn earlier_candidates(&self) -> VictimSample {
        let ([first, next], [last, earlier]) = (self.runner_ups, self.newest);
        let newest = if self.is_empty(last) { earlier } else { last };
        let is_new = newest != first && newest != next;
        let mut sample = VictimSample { buckets: [0; 4 * SAMPLE], len: 0 };
        for bucket in [first, next, if is_new { newest } else { NO_BUCKET }] {
            if !self.is_empty(bucket) {
                sample.buckets[sample.len] = bucket as u32;
                sample.len += 1;
            }
        }
        sample
    }

    /// Preselects the candidates that are worth about as much as the first. The next ones are the runners-up.
    fn preselect(&mut self, ranks: &Ranks) {
        // Of protected entries just one: at the next eviction, the shard has an unread entry.
        let served = match ranks.get(0).is_some_and(Rank::is_protected) {
            true => 1,
            false => (self.len / ENTRIES_PER_SERVED).clamp(2, SERVED),
        };
        let count = ranks.near_first().min(served);
        self.preselected.clear();
        for rank in (0..count).rev().filter_map(|position| ranks.get(position)) {
            let access_word = *self.word(rank.bucket());
            self.preselected.push(Preselected { rank, access_word });
        }
        self.runner_ups = ranks.buckets_from(count, NO_BUCKET);
    }

    /// Returns the rank of the entry in `bucket`, whose hits have been learnt from.
    #[inline]
    fn rank(&self, bucket: usize, protects_read: bool) -> Rank {
        let now = self.clock.now();
        let access_word = AccessWord(self.access_words[bucket].load(Relaxed));
        let worth = self.hit_model.worth(access_word.stored_class(), access_word.age(now));
        let is_protected = protects_read && access_word.is_read();
        Rank::new(is_protected, worth, access_word.elapsed(now), bucket)
    }

    /// Returns the access word of a bucket of the table.
    #[inline]
    fn word(&mut self, bucket: usize) -> &mut u16 {
        self.access_words[bucket].get_mut()
    }

    /// Returns whether a bucket is empty, or not one of the table.
    #[inline]
    fn is_empty(&self, bucket: usize) -> bool {
        self.access_words.get(bucket).is_none_or(|access_word| access_word.load(Relaxed) == 0)
    }

    /// Returns whether the entry in `bucket`, whose hits have been learnt from, was read.
    fn is_read(&mut self, bucket: usize) -> bool {
        AccessWord(*self.word(bucket)).is_read()
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

    /// Adds the next full buckets, up to `max_len`. Returns their number, and the bucket at which the scan stopped.
    /// Nothing here branches on whether a bucket is full, which no branch predictor can learn.
    #[inline]
    fn add_sample(&mut self, sample: &mut VictimSample, max_len: usize) -> (usize, usize) {
        let (mut count, mut end) = (0, self.cursor);
        let scan_end = self.access_words.len().min(self.cursor + MAX_SCAN);
        for access_word in &mut self.access_words[self.cursor..scan_end] {
            // The sum is below the size of the array. The remainder takes fewer instructions than a check of the index.
            sample.buckets[(sample.len + count) % (4 * SAMPLE)] = end as u32;
            count += usize::from(*access_word.get_mut() != 0);
            end += 1;
            if count == max_len {
                break;
            }
        }
        sample.len += count;
        (count, end)
    }

    /// Adds those entries of the sample to the candidates that may be evicted and are good enough. Returns the bucket
    /// of an unreadable one.
    #[inline]
    fn consider(
        &mut self,
        sample: &VictimSample,
        eligibility: &Eligibility<'_>,
        protects_read: bool,
        ranks: &mut Ranks,
    ) -> Option<usize> {
        let buckets = || sample.buckets[..sample.len].iter().map(|bucket| *bucket as usize);
        if let Some(is_unreadable) = eligibility.is_unreadable
            && let Some(unreadable) = buckets().find(|bucket| is_unreadable(*bucket))
        {
            return Some(unreadable);
        }
        buckets().for_each(|bucket| _ = self.current(bucket));
        for bucket in buckets() {
            if !eligibility.is_weightless(bucket) {
                ranks.put(self.rank(bucket, protects_read));
            }
        }
        None
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

impl Eligibility<'_> {
    /// Returns whether evicting the entry in `bucket` would free nothing.
    #[inline]
    fn is_weightless(&self, bucket: usize) -> bool {
        self.weights.is_some_and(|weights| weights[bucket] == 0)
    }
}
