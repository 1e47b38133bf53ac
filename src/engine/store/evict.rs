//! Eviction: removes entries so that the store stays within its bound after each write.
//!
//! 1. Expired entries, and values with removed tags, are removed first, regardless of their shard:
//!    [`Store::expire_to_fit`].
//! 2. Then live entries of the written shard are evicted, under the same lock as the write. Entries of other shards are
//!    evicted only if that shard has too few. No two shards are locked at the same time.
//! 3. A writer frees the weight by which its own write exceeded the bound, and does so before it returns. A removal
//!    releases its weight under the lock of its shard.

use std::hash::{BuildHasher, Hash};

use super::{
    Location, Store,
    bound::{self, Bound, Weigher},
    entry::{Cause, Entry},
    eviction_state::EvictionState,
    policy::Policy,
    shard::{DropQueue, Shard},
    window::{self, WINDOW},
};
use crate::engine::{
    clock::Now,
    panics,
    sync::atomic::{
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

/// Maximum number of live entries that are evicted under one lock. A small shard evicts fewer: an eighth of its
/// entries.
const MAX_EVICTIONS_PER_LOCK: usize = 32;

/// Maximum number of locks under which one call searches for values with removed tags: about 16,000 buckets.
const MAX_PURGE_STEPS: usize = 64;

/// An entry that must not be evicted, since it was just written.
#[derive(Clone, Copy)]
pub(super) struct Exempt {
    pub(super) location: Location,
    pub(super) bucket: usize,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Evicts entries from now on so that the total weight stays within `limit`. The same seeds and the same calls lead
    /// to the same evictions.
    pub(crate) fn evicting(
        mut self,
        limit: u64,
        weigher: Option<Weigher<K, V>>,
        mut seed: impl FnMut() -> u64,
    ) -> Self {
        let first = Policy::new(seed());
        for index in 0..self.shard_count() {
            let policy = first.for_another_shard(seed());
            let mut locked = self.shards.write(index);
            let (table, state) = locked.parts();
            let eviction = EvictionState::new(policy, weigher.is_some(), table.buckets());
            state.side_tables.eviction = Some(Box::new(eviction));
        }
        self.bound = Some(Box::new(Bound::new(limit, weigher, true)));
        self
    }

    /// Returns the total weight of all entries; without a weigher, their number.
    pub(crate) fn weight(&self) -> u64 {
        match &self.bound {
            Some(bound) => bound.used(),
            None => self.len() as u64,
        }
    }

    /// Returns the bound on the total weight, if there is one.
    #[cfg(feature = "metrics")]
    pub(crate) fn limit(&self) -> Option<u64> {
        self.bound.as_ref().map(|bound| bound.limit())
    }

    /// Returns the weight of a new entry, if this store evicts.
    #[inline]
    pub(crate) fn weigh(&self, key: &K, value: &V) -> Option<u32> {
        self.evicting_bound().map(|bound| bound.weigh(key, value))
    }

    /// Returns whether entries are weighed by a weigher; `None` if this store does not evict.
    pub(crate) fn has_weigher(&self) -> Option<bool> {
        self.evicting_bound().map(Bound::has_weigher)
    }

    /// Changes the limit. The caller must then call [`evict_some`](Self::evict_some) until it returns 0.
    pub(crate) fn set_limit(&self, limit: u64) {
        if let Some(bound) = &self.bound {
            bound.set_limit(limit);
        }
    }

    /// Evicts some of the excess from the next shard. Returns the remaining excess.
    pub(crate) fn evict_some(&self, now: &impl Now) -> u64 {
        let Some(bound) = &self.bound else { return 0 };
        self.expire_to_fit(bound, 0, now);
        let excess = bound.excess();
        if excess > 0 {
            let index = bound.next_shard(self.shard_count());
            let mut drop_queue = DropQueue::new();
            let mut locked = self.lock_shard(index);
            self.evict(&mut locked, excess, None, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
        }
        bound.excess()
    }

    /// Returns the bound if this store evicts entries to stay within it.
    #[inline]
    pub(super) fn evicting_bound(&self) -> Option<&Bound<K, V>> {
        self.bound.as_deref().filter(|bound| bound.evicts)
    }

    /// Removes expired entries of any shard, window by window, and then values with removed tags, as long as `weight` more
    /// would exceed the limit.
    ///
    /// An index moment may be too early. So some windows are examined without finding an expired entry; each such
    /// examination corrects the index.
    pub(super) fn expire_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) {
        while bound.excess_with(weight) > 0 && bound.may_have_expired(now) {
            bound.earliest_expiry.store(u64::MAX, Relaxed);
            // Store buffering, with `Store::note_deadline`, which stores the earliest expiry of its shard, and only then,
            // after a fence, reads the bound's: after this fence, either the loads of `meta` below return a writer's
            // earlier deadline, or that writer sees `u64::MAX` here and lowers it again. A writer that does not lower its
            // shard's earliest expiry follows, under the same lock, one that did.
            fence(SeqCst);
            let mut earliest = u64::MAX;
            for shard in 0..self.shard_count() {
                let found = match self.is_due(shard, now) {
                    true => self.expire_window(shard, now),
                    false => Some(self.meta[shard].earliest_expiry.load(Relaxed)),
                };
                // The shards after this one were not examined, so nothing is known of their earliest expiry.
                earliest = earliest.min(found.unwrap_or(0));
                if found.is_none() {
                    break;
                }
            }
            // A minimum: writers may have noted earlier deadlines since.
            bound.earliest_expiry.fetch_min(earliest, SeqCst);
        }
        if self.has_tag_removals() {
            self.purge_tags_to_fit(bound, weight, now);
        }
    }

    /// Removes values with removed tags, some windows at a time, as long as `weight` more would exceed the limit. No index
    /// shows where they are, so one call examines a limited number of windows, and the next writer continues there: each
    /// removal of a tag costs the writers at most about one pass over the table.
    #[cold]
    fn purge_tags_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) {
        for _ in 0..MAX_PURGE_STEPS {
            let to_free = bound.excess_with(weight);
            if to_free == 0 || !self.continue_tag_purge(to_free, now) {
                return;
            }
        }
    }

    /// Removes the expired entries of the next window that has any. If the shard has none, returns a time before which
    /// none of its entries expires: taken from the deadlines examined, since the index may say that a window is due too
    /// early.
    fn expire_window(&self, shard: usize, now: &impl Now) -> Option<u64> {
        let mut expired = Vec::new();
        let mut locked = self.lock_shard(shard);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, shard);
            drop(locked);
            drop(emptied);
            return None;
        }
        let now = now.tick();
        let (table, state) = locked.parts();
        let (buckets, mut next) = (table.buckets(), 0);
        state.index.rebase(self.stale_cutoff(now));
        let mut nothing_before = state.index.next_moment(now);
        while expired.is_empty() && next < buckets {
            let (table, state) = locked.parts();
            let Some(start) = state.index.next_due(next, buckets, now) else { break };
            next = buckets.min(start + WINDOW);
            let found = window::select_expired(table, start..next, usize::MAX, now);
            state.index.set_window(start, found.earliest);
            nothing_before = nothing_before.min(found.earliest.order());
            for bucket in found.buckets() {
                locked.remove_into(bucket, Cause::Expired, now, &mut expired);
            }
        }
        let found = !expired.is_empty();
        let earliest = locked.parts().1.index.recompute_earliest();
        self.meta[shard].earliest_expiry.store(earliest.order(), Relaxed);
        locked.record(&mut expired);
        drop(locked);
        panics::drop_all(expired);
        (!found).then_some(nothing_before)
    }

    /// Returns whether an entry of this shard may have expired.
    #[inline]
    fn is_due(&self, shard: usize, now: &impl Now) -> bool {
        bound::is_due(self.meta[shard].earliest_expiry.load(Relaxed), now)
    }

    /// Evicts entries of a locked shard until `weight_to_free` is freed, or a share of the shard was evicted. Returns
    /// the weight freed, which is subtracted from the bound at the unlock unless the caller takes it.
    pub(super) fn evict(
        &self,
        locked: &mut Shard<'_, K, V, S>,
        weight_to_free: u64,
        mut exempt: Option<usize>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        locked.release();
        let (shard, mut count) = (locked.index(), 0);
        let max_evictions = MAX_EVICTIONS_PER_LOCK.min(1 + locked.len() / 8);
        while locked.freed() < weight_to_free && count < max_evictions {
            let (may_have_expired, may_have_tag_removals) =
                (self.is_due(shard, now), self.has_tag_removals());
            let (table, state) = locked.parts();
            let Some((eviction, tags)) = state.side_tables.eviction_and_tags() else { break };
            // Expired, or removed by a tag: no look-up returns it.
            let is_unreadable = |bucket| {
                window::entry_at(table, bucket).is_some_and(|(_, entry)| {
                    let deadline = entry.deadline();
                    may_have_expired && now.is_expired(deadline)
                        || may_have_tag_removals
                            && tags.is_some_and(|tags| tags.is_removed(bucket, deadline))
                })
            };
            let may_have_unreadable = may_have_expired || may_have_tag_removals;
            let victim = eviction.choose_victim(exempt, may_have_unreadable, is_unreadable);
            let Some(bucket) = victim else {
                if state.old.is_none() {
                    break;
                }
                // All candidates are still in the old table.
                self.move_candidates(locked, &mut exempt);
                continue;
            };
            let is_expired = may_have_expired
                && window::entry_at(table, bucket)
                    .is_some_and(|(_, entry)| now.is_expired(entry.deadline()));
            let cause = if is_expired { Cause::Expired } else { Cause::Evicted };
            // Unreadable entries do not count against the limit: they are not evicted, and some of them weigh nothing.
            let cause = locked.remove(bucket, cause, now, drop_queue);
            count += usize::from(cause == Cause::Evicted);
        }
        locked.freed()
    }

    /// Moves some entries out of the old table. If the table grows for them, the exempt entry is then in another bucket.
    #[cold]
    fn move_candidates(&self, locked: &mut Shard<'_, K, V, S>, exempt: &mut Option<usize>) {
        let hash = exempt
            .and_then(|bucket| window::entry_at(locked, bucket))
            .map(|(key, _)| self.hash_or_zero(key));
        let (shard, generation) = (locked.index(), locked.state().generation);
        let (_, emptied) = self.move_windows(locked, shard);
        debug_assert!(
            emptied.is_none_or(|table| table.is_empty()),
            "a table that was moved is empty"
        );
        if let Some(hash) = hash.filter(|_| locked.state().generation != generation) {
            *exempt = self.bucket_of_hash(locked, hash);
        }
    }

    /// Returns the bucket of the key with this hash. By the hash alone, as no key is at hand; two keys with the same
    /// hash of 64 bits are rare, and then the wrong one is exempt.
    fn bucket_of_hash(&self, locked: &mut Shard<'_, K, V, S>, hash: u64) -> Option<usize> {
        let matches = |key: &K, _: &Entry<V>| self.hash_or_zero(key) == hash;
        window::find_where(locked.parts().0, hash, matches).map(|(bucket, _)| bucket)
    }

    /// Evicts `to_evict` of weight for the entry that was just written, and unlocks its shard. Evicts entries of the
    /// same shard first; if these are too few, or entries of any shard may have expired, continues after the unlock.
    pub(super) fn evict_to_fit(
        &self,
        mut locked: Shard<'_, K, V, S>,
        exempt: Exempt,
        mut to_evict: u64,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let Some(bound) = self.evicting_bound() else { return };
        if to_evict > 0 && !bound.may_have_expired(now) {
            let freed = self.evict(&mut locked, to_evict, Some(exempt.bucket), now, drop_queue);
            to_evict = to_evict.saturating_sub(freed);
        }
        drop(locked);
        if to_evict > 0 {
            self.expire_to_fit(bound, 0, now);
            self.evict_from_any_shard(bound, to_evict, exempt.location, now);
        }
    }

    /// Evicts entries of any shard until `to_evict` is freed or the store is within its bound. Never evicts the entry
    /// of the key at `exempt`, which was just written.
    #[cold]
    pub(super) fn evict_from_any_shard(
        &self,
        bound: &Bound<K, V>,
        mut to_evict: u64,
        exempt: Location,
        now: &impl Now,
    ) {
        let shards = self.shard_count();
        let first = bound.next_shard(shards);
        // The first round skips locked shards. If it frees nothing, the next one waits for each lock in turn. If that
        // frees nothing either, the store is empty, or the writers that hold the rest will evict it themselves.
        let mut blocks = false;
        loop {
            let mut found = false;
            for step in 0..shards {
                if to_evict == 0 || bound.excess() == 0 {
                    return;
                }
                let index = (first + step) % shards;
                let locked = match blocks {
                    true => Some(self.shards.write(index)),
                    false => self.shards.try_write(index),
                };
                let Some(locked) = locked else { continue };
                let mut locked = Shard::new(self, locked);
                let exempt = match index == exempt.shard() {
                    true => self.bucket_of_hash(&mut locked, exempt.hash()),
                    false => None,
                };
                let mut drop_queue = DropQueue::new();
                let freed = self.evict(&mut locked, to_evict, exempt, now, &mut drop_queue);
                drop(locked);
                drop_queue.drop_all();
                to_evict = to_evict.saturating_sub(freed);
                found |= freed > 0;
            }
            if blocks && !found {
                return;
            }
            blocks = !found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::engine::{
        clock::{Deadline, Tick},
        hasher::DefaultHasher,
        store::{Cause, Store},
    };

    /// Entries of weight 0 fill the smaller table while most of the others are still in the old one. Evicting moves
    /// those, and so the table grows in the middle of an eviction: the written entry is in another bucket then, and
    /// must still not be evicted.
    #[test]
    fn written_entry_is_exempt_even_if_evicting_grows_the_table() {
        let store = Store::<u64, u32, _>::new(2, 0, DefaultHasher::default());
        let mut seed = 0;
        let store = store.evicting(1_000, Some(Arc::new(|_: &u64, weight: &u32| *weight)), || {
            seed += 1;
            seed
        });
        let put = |key: &u64, weight| {
            store.set(*key, weight, &Tick::EPOCH, |_| Deadline::PERSISTENT);
        };
        let mut keys = (0..).filter(|key| store.place(key).shard() == 0);
        let light: Vec<u64> = keys.by_ref().take(1_000).collect();
        light.iter().for_each(|key| put(key, 1));
        for key in &light[60..] {
            store.remove(key, &Tick::EPOCH, Cause::Removed);
        }
        assert!(store.shrink(0));
        let capacity = store.shards.read(0).capacity();
        let weightless: Vec<u64> = keys.take(capacity).collect();
        weightless.iter().for_each(|key| put(key, 0));
        assert!(store.shards.read(0).state().old.is_some());
        put(&weightless[0], 1_000);
        assert_eq!(store.get(&weightless[0], &Tick::EPOCH), Some(1_000));
        assert_eq!(store.weight(), 1_000);
    }
}
