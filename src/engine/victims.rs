//! Side tables of a shard that evicts: the state of the eviction policy and the weights, by bucket. And the choice of a
//! victim, which a small shard declines if only read entries are left.

mod access_word;
mod ghosts;
mod hit_model;
mod insert_clock;
pub(crate) mod policy;

use self::policy::{AccessWords, Eligibility, MAX_EXEMPT, Policy};

/// Number of entries, of weight 1 each, below which a shard may decline to evict. A larger shard that has only read
/// entries loses just one of them: the entry that is then written is unread, and the next to go. To search the other
/// shards for an unread entry would cost more, up to a sample in each, at every write. If entries have weights, the
/// unread ones of any shard may weigh too little for the next write, so each of these writes would evict read ones.
const MAX_DECLINING: usize = 32;

/// The eviction policy and the weights of a shard.
pub(crate) struct EvictionState {
    policy: Policy,
    /// `None` if each entry weighs 1.
    weights: Option<Vec<u32>>,
    /// Sum of the weights; 0 without a weigher.
    weight: u64,
}

/// Access words and weights of the old table while its entries are being moved.
pub(crate) struct OldEvictionState {
    access_words: AccessWords,
    weights: Vec<u32>,
}

impl EvictionState {
    pub(crate) fn new(mut policy: Policy, has_weigher: bool, buckets: usize) -> Self {
        policy.resize(buckets);
        Self { policy, weights: has_weigher.then(|| vec![0; buckets]), weight: 0 }
    }

    /// Records a hit. Needs only the read lock.
    #[inline]
    pub(crate) fn touch(&self, bucket: usize) {
        self.policy.touch(bucket);
    }

    /// Returns whether a missing key was evicted recently. Needs only the read lock.
    pub(crate) fn was_evicted_recently(&self, hash: u64) -> bool {
        self.policy.was_evicted_recently(hash)
    }

    /// Prefetches what [`inserted`](Self::inserted) reads.
    #[inline]
    pub(crate) fn prefetch_inserted(&self, hash: u64) {
        self.policy.prefetch_ghost(hash);
    }

    /// Returns the next victim, if one is chosen already.
    #[inline]
    pub(crate) fn next_victim(&self) -> Option<usize> {
        self.policy.next_victim()
    }

    /// Records the entry of a new key, as one of `len` entries.
    pub(crate) fn inserted(&mut self, bucket: usize, hash: u64, weight: u32, len: usize) {
        self.policy.inserted(bucket, hash, len);
        self.set_weight(bucket, weight);
    }

    /// Returns the weight of the entry in `bucket`.
    pub(crate) fn weight_of(&self, bucket: usize) -> u32 {
        self.weights.as_ref().map_or(1, |weights| weights[bucket])
    }

    /// Sets the weight of the entry in `bucket`. Returns the previous one.
    pub(crate) fn set_weight(&mut self, bucket: usize, weight: u32) -> u64 {
        let Some(weights) = &mut self.weights else { return 1 };
        let before = std::mem::replace(&mut weights[bucket], weight);
        self.weight = self.weight - u64::from(before) + u64::from(weight);
        u64::from(before)
    }

    /// Forgets the entry of `bucket`, which departed without being evicted. Returns its weight.
    #[inline]
    pub(crate) fn departed(&mut self, bucket: usize) -> u64 {
        self.policy.departed(bucket);
        self.set_weight(bucket, 0)
    }

    /// Forgets the entry of `bucket`, which was evicted, but remembers its key as a ghost. Returns its weight.
    pub(crate) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) -> u64 {
        self.policy.evicted(bucket, hash, len);
        self.set_weight(bucket, 0)
    }

    /// Forgets all `len` entries. Returns their weight.
    pub(crate) fn cleared(&mut self, len: usize) -> u64 {
        let weight = if self.weights.is_some() { self.weight } else { len as u64 };
        self.weight = 0;
        weight
    }

    /// Adapts to a new table of `buckets` buckets. Returns the data of the old one.
    pub(crate) fn resize(&mut self, buckets: usize) -> OldEvictionState {
        let access_words = self.policy.resize(buckets);
        let weights =
            self.weights.as_mut().map(|weights| std::mem::replace(weights, vec![0; buckets]));
        OldEvictionState { access_words, weights: weights.unwrap_or_default() }
    }

    /// Moves the data of an entry from a bucket of the old table to one of the current table.
    pub(crate) fn relocate(&mut self, old: &OldEvictionState, from: usize, to: usize) {
        self.policy.relocate(&old.access_words, from, to);
        if let Some(weights) = &mut self.weights {
            weights[to] = old.weights[from];
        }
    }

    /// Chooses an entry to evict, but never an `exempt` bucket or an entry of weight 0. Prefers an unreadable entry, if
    /// the sample has one; `is_unreadable` is `None` if none can be. A shard that `may_decline` chooses none rather
    /// than a read entry that is protected, unless it has many entries without weights.
    pub(crate) fn choose_victim(
        &mut self,
        exempt: [Option<usize>; MAX_EXEMPT],
        may_decline: bool,
        is_unreadable: Option<&dyn Fn(usize) -> bool>,
    ) -> Option<usize> {
        let Self { policy, weights, .. } = self;
        let may_decline = may_decline && (weights.is_some() || policy.len() < MAX_DECLINING);
        policy.victim(Eligibility {
            exempt,
            weights: weights.as_deref(),
            is_unreadable,
            may_decline,
        })
    }
}
