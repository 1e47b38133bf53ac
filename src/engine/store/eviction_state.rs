//! What a shard of a bounded store keeps of its entries, by the bucket that each is in: who is worth keeping, and what
//! each weighs.

use super::policy::{AccessWords, BucketState, Policy};

pub(super) struct EvictionState {
    policy: Policy,
    /// None where each entry weighs 1.
    weights: Option<Vec<u32>>,
    /// Of all entries.
    weight: u64,
}

/// What was kept of the entries of a table that they leave.
pub(super) struct OldEvictionState {
    access_words: AccessWords,
    weights: Vec<u32>,
}

impl EvictionState {
    pub(super) fn new(mut policy: Policy, has_weigher: bool, buckets: usize) -> Self {
        policy.resize(buckets);
        Self { policy, weights: has_weigher.then(|| vec![0; buckets]), weight: 0 }
    }

    /// Called under the lock for reading.
    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        self.policy.touch(bucket);
    }

    /// Called under the lock for reading.
    pub(super) fn was_evicted_recently(&self, hash: u64) -> bool {
        self.policy.was_evicted_recently(hash)
    }

    /// A key that was not there has come, as one of `len`.
    pub(super) fn inserted(&mut self, bucket: usize, hash: u64, weight: u32, len: usize) {
        self.policy.inserted(bucket, hash, len);
        self.set_weight(bucket, weight);
    }

    /// What the entry in this bucket weighs.
    pub(super) fn weight_of(&self, bucket: usize) -> u32 {
        self.weights.as_ref().map_or(1, |weights| weights[bucket])
    }

    /// What is in this bucket weighs so much from now on. Returns what it weighed.
    pub(super) fn set_weight(&mut self, bucket: usize, weight: u32) -> u64 {
        let Some(weights) = &mut self.weights else { return 1 };
        let before = std::mem::replace(&mut weights[bucket], weight);
        self.weight = self.weight - u64::from(before) + u64::from(weight);
        u64::from(before)
    }

    /// What was in this bucket has left by itself. Returns what it weighed.
    #[inline]
    pub(super) fn departed(&mut self, bucket: usize) -> u64 {
        self.policy.departed(bucket);
        self.set_weight(bucket, 0)
    }

    /// What was in this bucket has left for others. Returns what it weighed.
    pub(super) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) -> u64 {
        self.policy.evicted(bucket, hash, len);
        self.set_weight(bucket, 0)
    }

    /// All `len` have left. Returns what they weighed.
    pub(super) fn cleared(&mut self, len: usize) -> u64 {
        let weight = if self.weights.is_some() { self.weight } else { len as u64 };
        self.weight = 0;
        weight
    }

    /// Another table takes the place of the present one.
    pub(super) fn resize(&mut self, buckets: usize) -> OldEvictionState {
        let access_words = self.policy.resize(buckets);
        let weights =
            self.weights.as_mut().map(|weights| std::mem::replace(weights, vec![0; buckets]));
        OldEvictionState { access_words, weights: weights.unwrap_or_default() }
    }

    /// An entry has come from a bucket of a table that it left.
    pub(super) fn relocate(&mut self, old: &OldEvictionState, from: usize, to: usize) {
        self.policy.relocate(&old.access_words, from, to);
        if let Some(weights) = &mut self.weights {
            weights[to] = old.weights[from];
        }
    }

    /// Chooses who leaves: something gone where `is_gone` finds it, and nothing that gives no room.
    #[inline]
    pub(super) fn choose_victim(
        &mut self,
        exempt: Option<usize>,
        may_have_unreadable: bool,
        is_unreadable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let Self { policy, weights, .. } = self;
        match weights {
            // Where nobody is gone and all weigh the same, the entries are not looked at.
            None if !may_have_unreadable => policy.victim(exempt, false, |_| BucketState::Live),
            weights => policy.victim(exempt, may_have_unreadable, |bucket| {
                let has_weight = || weights.as_ref().is_none_or(|weights| weights[bucket] > 0);
                match () {
                    () if may_have_unreadable && is_unreadable(bucket) => BucketState::Expired,
                    () if has_weight() => BucketState::Live,
                    () => BucketState::Weightless,
                }
            }),
        }
    }
}
