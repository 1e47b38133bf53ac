//! Eviction: removes entries so that the store stays within its bound after each write.
//!
//! 1. Expired entries, and values with removed tags, are removed first, regardless of their shard:
//!    [`Store::expire_to_fit`].
//! 2. Then live entries of the written shard are evicted, under the same lock as the write. Entries of other shards are
//!    evicted only if that shard has too few. No two shards are locked at the same time.
//! 3. A writer frees the weight by which its own write exceeded the bound, and does so before it returns. A removal
//!    releases its weight under the lock of its shard.

use std::hash::{BuildHasher, Hash};

use super::{Location, Store};
use crate::engine::{
    clock::Now,
    eviction::{
        bound::{Bound, Weigher},
        policy::Policy,
    },
    panics,
    shard::{Shard, remove::DropQueue},
    sync::atomic::{
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

/// Maximum number of locks under which one part of an eviction evicts live entries, and maximum number under which it
/// removes expired ones: at most some thousand entries, which take about a millisecond. Few in the tests of
/// interleavings, so that evictions are deferred in a small store.
const MAX_EVICTION_STEPS: usize = if cfg!(all(test, shuttle)) { 1 } else { 32 };
const MAX_EXPIRY_STEPS: usize = 64;

/// Maximum number of entries in which one call searches for values with removed tags.
const MAX_PURGE_COST: usize = 16_384;

/// Number of entries that take as long to examine as a lock, so that one call visits at most 1,024 shards.
const PURGE_COST_OF_LOCK: usize = 16;

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
            self.lock_shard(index).track_evictions(policy, weigher.is_some());
        }
        self.context.bound = Some(Box::new(Bound::new(limit, weigher, true)));
        self
    }

    /// Returns the total weight of all entries; without a weigher, their number.
    pub(crate) fn weight(&self) -> u64 {
        match &self.context.bound {
            Some(bound) => bound.used(),
            None => self.len() as u64,
        }
    }

    /// Returns the bound on the total weight, if there is one.
    #[cfg(feature = "metrics")]
    pub(crate) fn limit(&self) -> Option<u64> {
        self.context.bound.as_ref().map(|bound| bound.limit())
    }

    /// Returns the weight of a new entry, if this store evicts.
    #[inline]
    pub(crate) fn weigh(&self, key: &K, value: &V) -> Option<u32> {
        self.context.evicting_bound().map(|bound| bound.weigh(key, value))
    }

    /// Returns whether entries are weighed by a weigher; `None` if this store does not evict.
    pub(crate) fn has_weigher(&self) -> Option<bool> {
        self.context.evicting_bound().map(Bound::has_weigher)
    }

    /// Changes the limit. The caller must then call [`evict_some`](Self::evict_some) until it returns 0.
    pub(crate) fn set_limit(&self, limit: u64) {
        if let Some(bound) = &self.context.bound {
            bound.set_limit(limit);
        }
    }

    /// Evicts some of the excess from the next shard. Returns the remaining excess.
    pub(crate) fn evict_some(&self, now: &impl Now) -> u64 {
        let Some(bound) = &self.context.bound else { return 0 };
        let has_no_expired = self.expire_to_fit(bound, 0, now);
        let excess = bound.excess();
        if excess > 0 && has_no_expired {
            let index = bound.next_shard(self.shard_count());
            let mut drop_queue = DropQueue::new();
            let mut locked = self.lock_shard(index);
            locked.evict(excess, [], now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
        }
        bound.excess()
    }

    /// Records a write, which may have to help with the evictions that others have deferred. Called under the lock of
    /// the written shard, so that an eviction that is under way sees it before it chooses victims there.
    #[inline]
    pub(super) fn note_written(&self, location: Location) {
        if let Some(bound) = self.context.evicting_bound() {
            bound.note_written(location.hash());
        }
    }

    /// Returns whether some writes have deferred evictions. The caller is about to end a write, and must then call
    /// [`evict_deferred`](Self::evict_deferred) until it returns false.
    #[inline]
    pub(crate) fn has_deferred_evictions(&self) -> bool {
        self.context.evicting_bound().is_some_and(|bound| bound.deferred() > 0)
    }

    /// Evicts a part of the weight whose eviction was deferred. Returns whether there is more.
    pub(crate) fn evict_deferred(&self, now: &impl Now) -> bool {
        let Some(bound) = self.context.evicting_bound() else { return false };
        if bound.deferred() == 0 {
            return false;
        }
        // Before the turn, as this drops values: their `Drop` may write to this cache, and so wait for the turn.
        if !self.expire_to_fit(bound, 0, now) {
            return true;
        }
        let mut drop_queue = DropQueue::new();
        if let Some(turn) = bound.try_begin_turn() {
            let deferred = bound.deferred();
            // Other writers and removals may have freed weight in the meantime.
            let to_evict = deferred.min(bound.excess());
            let exempt = || bound.exempt_from_deferred().map(|hash| self.locate_hash(hash));
            match self.evict_for_both(bound, to_evict, &exempt, now, &mut drop_queue) {
                0 => turn.settle(deferred),
                remaining => turn.settle(to_evict - remaining),
            }
        }
        drop_queue.drop_all();
        bound.deferred() > 0
    }

    /// Removes expired entries of any shard, window by window, and then values with removed tags, as long as `weight`
    /// more would exceed the limit. Returns false if it stopped earlier, because it has kept its worker for long.
    ///
    /// An index moment may be too early. So some windows are examined without finding an expired entry; each such
    /// examination corrects the index.
    #[inline]
    pub(super) fn expire_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) -> bool {
        if bound.excess_with(weight) == 0 || !self.may_have_unreadable(bound, now) {
            return true;
        }
        self.expire_windows_to_fit(bound, weight, now)
    }

    /// Returns whether entries may be resident that no look-up returns: expired ones, and values with removed tags.
    /// They are removed before live ones are evicted.
    #[inline]
    pub(super) fn may_have_unreadable(&self, bound: &Bound<K, V>, now: &impl Now) -> bool {
        bound.may_have_expired(now) || self.has_tag_removals()
    }

    #[cold]
    fn expire_windows_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) -> bool {
        let mut steps = 0;
        while bound.excess_with(weight) > 0 && bound.may_have_expired(now) {
            if steps == MAX_EXPIRY_STEPS {
                return false;
            }
            steps += 1;
            bound.earliest_expiry.store(u64::MAX, Relaxed);
            // Store buffering, with `Store::note_deadline`, which stores the earliest expiry of its shard, and only
            // then, after a fence, reads the bound's: after this fence, either the loads of `meta` below return a
            // writer's earlier deadline, or that writer sees `u64::MAX` here and lowers it again. A writer that does
            // not lower its shard's earliest expiry follows, under the same lock, one that did.
            fence(SeqCst);
            let mut earliest = u64::MAX;
            for shard in 0..self.shard_count() {
                let found = match self.context.is_due(shard, now) {
                    true => self.expire_window(shard, now),
                    false => Some(self.context.meta[shard].earliest_expiry.load(Relaxed)),
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
        true
    }

    /// Removes values with removed tags, some windows at a time, as long as `weight` more would exceed the limit. No
    /// index shows where they are, so one call examines a limited number of entries, and the next writer continues
    /// there: each removal of a tag costs the writers at most about one pass over the table.
    #[cold]
    fn purge_tags_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) {
        let mut cost = 0;
        while cost < MAX_PURGE_COST {
            let to_free = bound.excess_with(weight);
            if to_free == 0 {
                return;
            }
            let Some(examined) = self.continue_tag_purge(to_free, now) else { return };
            cost += examined + PURGE_COST_OF_LOCK;
        }
    }

    /// Removes the expired entries of the next window that has any. If the shard has none, returns a time before which
    /// none of its entries expires.
    fn expire_window(&self, shard: usize, now: &impl Now) -> Option<u64> {
        let mut expired = Vec::new();
        let mut locked = self.lock_shard(shard).unless_moving().ok()?;
        let now = now.tick();
        let nothing_before = locked.expire_window(self.stale_cutoff(now), now, &mut expired);
        drop(locked);
        panics::drop_all(expired);
        nothing_before
    }

    /// Evicts `to_evict` of weight for the entry that was just written, and unlocks its shard. Evicts entries of the
    /// same shard first; if these are too few, or entries of any shard may have expired, continues after the unlock.
    /// Very many evictions are deferred: see [`evict_deferred`](Self::evict_deferred).
    pub(super) fn evict_to_fit(
        &self,
        mut locked: Shard<'_, K, V, S>,
        exempt: Exempt,
        mut to_evict: u64,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let Some(bound) = self.context.evicting_bound() else { return };
        // The entry of an earlier write that has deferred evictions is exempt, too, and is in any shard.
        let has_deferred = bound.deferred() > 0;
        if to_evict > 0 && !has_deferred && !self.may_have_unreadable(bound, now) {
            let freed = locked.evict(to_evict, [Some(exempt.bucket)], now, drop_queue);
            to_evict = to_evict.saturating_sub(freed);
        }
        drop(locked);
        if to_evict > 0 {
            // Expired entries of any shard first, and live ones if none of them is left.
            let remaining = match self.expire_to_fit(bound, 0, now) {
                true => {
                    let earlier = match has_deferred {
                        true => self.locate_hash(bound.deferred_for()),
                        false => exempt.location,
                    };
                    let exempt = || [earlier, exempt.location];
                    self.evict_for_both(bound, to_evict, &exempt, now, drop_queue)
                }
                false => to_evict,
            };
            if remaining > 0 {
                bound.defer(remaining, exempt.location.hash());
                // If the call is cancelled, the sweeper evicts the rest.
                self.context.journal.request_wake();
            }
        }
    }

    /// Evicts at most `to_evict` of live entries of any shard, as [`evict_from_any_shard`](Self::evict_from_any_shard)
    /// does, for the entries of two writes. If they do not fit together, the later one, which comes second, displaces
    /// the other. Returns the remaining weight to evict; zero if there is no entry to evict.
    #[cold]
    fn evict_for_both(
        &self,
        bound: &Bound<K, V>,
        to_evict: u64,
        exempt: &dyn Fn() -> [Location; 2],
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        let both = || exempt().map(Some);
        self.evict_from_any_shard(bound, to_evict, &both, now, drop_queue)
            .or_else(|remaining| {
                let later = || [None, Some(exempt()[1])];
                self.evict_from_any_shard(bound, remaining, &later, now, drop_queue)
            })
            .unwrap_or(0)
    }

    /// Evicts at most `to_evict` of live entries of any shard, in about a millisecond, until the store is within its
    /// bound. Never evicts the entries of the keys at `exempt`. Returns the remaining weight to evict, as an error if
    /// there is no other entry.
    #[cold]
    fn evict_from_any_shard(
        &self,
        bound: &Bound<K, V>,
        mut to_evict: u64,
        exempt: &dyn Fn() -> [Option<Location>; 2],
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> Result<u64, u64> {
        let shards = self.shard_count();
        let first = bound.next_shard(shards);
        // The first round skips locked shards. If it frees nothing, the next one waits for each lock in turn. If that
        // frees nothing either, only exempt entries are left, or the writers that hold the rest will evict it
        // themselves.
        let mut blocks = false;
        let mut steps = 0;
        loop {
            let mut found = false;
            for step in 0..shards {
                if to_evict == 0 || bound.excess() == 0 {
                    return Ok(0);
                }
                if steps == MAX_EVICTION_STEPS {
                    return Ok(to_evict);
                }
                let index = (first + step) % shards;
                let locked = match blocks {
                    true => Some(self.shards.write(index)),
                    false => self.shards.try_write(index),
                };
                let Some(locked) = locked else { continue };
                let mut locked = Shard::new(&self.context, locked);
                // Under the lock, see `note_written`.
                let buckets = exempt().map(|exempt| {
                    let here = exempt.filter(|exempt| exempt.shard() == index)?;
                    locked.bucket_of_hash(here.hash())
                });
                let freed = locked.evict(to_evict, buckets, now, drop_queue);
                drop(locked);
                to_evict = to_evict.saturating_sub(freed);
                found |= freed > 0;
                steps += usize::from(freed > 0);
            }
            if blocks && !found {
                return Err(to_evict);
            }
            blocks = !found;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
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
        let mut keys = (0..).filter(|key| store.locate(key).shard() == 0);
        let light: Vec<u64> = keys.by_ref().take(1_000).collect();
        light.iter().for_each(|key| put(key, 1));
        for key in &light[60..] {
            store.remove(key, &Tick::EPOCH, Cause::Removed);
        }
        assert!(store.shrink(0));
        let capacity = store.table_size(0).1;
        let weightless: Vec<u64> = keys.take(capacity).collect();
        weightless.iter().for_each(|key| put(key, 0));
        assert!(store.shards.read(0).is_shrinking());
        put(&weightless[0], 1_000);
        assert_eq!(store.get(&weightless[0], &Tick::EPOCH), Some(1_000));
        assert_eq!(store.weight(), 1_000);
    }
}
