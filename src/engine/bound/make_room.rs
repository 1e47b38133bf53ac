//! Making room: the only door by which a write frees space in a store that evicts, and the values that are refused
//! instead, because they are too heavy or have already expired. It frees space at five moments:
//!
//! | moment | function | removed entries |
//! | --- | --- | --- |
//! | before the lock | [`MakeRoom::before_write`] | unreadable entries of any shard: expired, or with a removed tag |
//! | before an insert, under its lock | [`MakeRoom::before_insert`] | live entries of the written shard |
//! | when the weight is counted | [`Shard::note_inserted`], [`Shard::update_weight`] | nothing: they return what is left to evict |
//! | after the write | [`MakeRoom::after_write`] | live entries of the written shard, then those of any; entries that the policy protects last |
//! | later | [`Store::evict_deferred`] | live entries of any shard that were too many for one call |
//!
//! No two shards are locked at the same time. A writer frees the weight by which its own write exceeded the bound, and
//! does so before it returns. A removal releases its weight under the lock of its shard.

use std::hash::{BuildHasher, Hash};

use super::limit::Bound;
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::Cause,
    panics,
    shard::{Shard, remove::DropQueue},
    store::{Location, Store},
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

/// Maximum number of shards of which one part of an eviction asks for unread entries only: it takes about ten
/// microseconds.
const MAX_DECLINING_SHARDS: usize = 16;

/// Maximum number of entries in which one call searches for values with removed tags.
const MAX_PURGE_COST: usize = 16_384;

/// Number of entries that take as long to examine as a lock, so that one call visits at most 1,024 shards.
const PURGE_COST_OF_LOCK: usize = 16;

/// A store that evicts, as a write sees it.
pub(in crate::engine) struct MakeRoom<'a, K, V, S> {
    store: &'a Store<K, V, S>,
    pub(in crate::engine) bound: &'a Bound<K, V>,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns the door by which a write frees space, if this store evicts.
    #[inline]
    pub(in crate::engine) fn make_room(&self) -> Option<MakeRoom<'_, K, V, S>> {
        self.context().evicting_bound().map(|bound| MakeRoom { store: self, bound })
    }

    /// Changes the limit. The caller must then call [`evict_some`](Self::evict_some) until it returns 0.
    pub(crate) fn set_limit(&self, limit: u64) {
        if let Some(bound) = &self.context().bound {
            bound.set_limit(limit);
        }
    }

    /// Evicts some of the excess from the next shard. Returns the remaining excess.
    pub(crate) fn evict_some(&self, now: &impl Now) -> u64 {
        let Some(room @ MakeRoom { bound, .. }) = self.make_room() else { return 0 };
        let has_no_expired = room.before_write(0, now);
        let excess = bound.excess();
        if excess > 0 && has_no_expired {
            let index = bound.next_shard(self.shard_count());
            let mut drop_queue = DropQueue::new();
            let mut locked = self.lock_shard(index);
            locked.evict(excess, [None; 2], false, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
        }
        bound.excess()
    }

    /// Returns whether some writes have deferred evictions. The caller is about to end a write, and must then call
    /// [`evict_deferred`](Self::evict_deferred) until it returns false.
    #[inline]
    pub(crate) fn has_deferred_evictions(&self) -> bool {
        self.make_room().is_some_and(|room| room.bound.deferred.weight() > 0)
    }

    /// Evicts a part of the weight whose eviction was deferred. Returns whether there is more.
    pub(crate) fn evict_deferred(&self, now: &impl Now) -> bool {
        self.make_room().is_some_and(|room| room.evict_deferred(now))
    }
}

impl<K, V, S> MakeRoom<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Removes expired entries of any shard, window by window, and then values with removed tags, as long as `weight`
    /// more would exceed the limit. Returns false if it stopped earlier, because it has kept its worker for long.
    ///
    /// An index moment may be too early. So some windows are examined without finding an expired entry; each such
    /// examination corrects the index.
    #[inline]
    pub(in crate::engine) fn before_write(&self, weight: u64, now: &impl Now) -> bool {
        if self.bound.excess_with(weight) == 0 || !self.may_have_unreadable(now) {
            return true;
        }
        self.expire_to_fit(weight, now)
    }

    /// Returns the cause by which a value departs that is not stored: its `weight` exceeds the limit, or it has already
    /// expired and a live entry would have to be evicted for it. `more` is by how much it weighs more than what it
    /// replaces.
    #[inline]
    pub(in crate::engine) fn refuse(
        &self,
        weight: u32,
        more: u32,
        deadline: Deadline,
        now: &impl Now,
    ) -> Option<Cause> {
        if self.bound.is_too_heavy(weight) {
            return Some(Cause::Evicted);
        }
        let is_full = self.bound.excess_of(u64::from(more)) > 0;
        (is_full && now.is_expired(deadline)).then_some(Cause::Expired)
    }

    /// Evicts live entries of the locked shard for a new entry with this hash and weight, unless unreadable ones of any
    /// shard or deferred weight come first: [`after_write`](Self::after_write) removes these.
    #[inline]
    pub(in crate::engine) fn before_insert(
        &self,
        locked: &mut Shard<'_, K, V, S>,
        (hash, weight): (u64, u32),
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let excess = self.bound.excess_of(u64::from(weight));
        if excess > 0 && self.bound.deferred.weight() == 0 && !self.may_have_unreadable(now) {
            locked.prefetch_inserted(hash);
            locked.evict(excess, [None; 2], true, now, drop_queue);
        }
    }

    /// Evicts `to_evict` of weight for the entry that was just written to `bucket`, and unlocks its shard. Evicts
    /// entries of the same shard first; if these are too few or protected by the policy, or unreadable ones may be in
    /// any shard, continues after the unlock. Very many evictions are deferred: see
    /// [`evict_deferred`](Store::evict_deferred).
    #[inline]
    pub(in crate::engine) fn after_write(
        &self,
        mut locked: Shard<'_, K, V, S>,
        (location, bucket): (Location, usize),
        mut to_evict: u64,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        // Under the lock, so that an eviction of deferred weight that is under way sees it before it chooses victims
        // here.
        self.bound.deferred.note_written(location.hash());
        if to_evict == 0 {
            return;
        }
        // The entry of an earlier write that has deferred evictions is exempt, too, and is in any shard.
        let has_deferred = self.bound.deferred.weight() > 0;
        if !has_deferred && !self.may_have_unreadable(now) {
            let freed = locked.evict(to_evict, [Some(bucket), None], true, now, drop_queue);
            to_evict = to_evict.saturating_sub(freed);
        }
        drop(locked);
        if to_evict > 0 {
            self.evict_after_unlock(location, to_evict, has_deferred, now, drop_queue);
        }
    }

    /// Evicts entries of any shard for the one that was written at `location`, and defers what takes long.
    #[cold]
    fn evict_after_unlock(
        &self,
        location: Location,
        to_evict: u64,
        has_deferred: bool,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let deferred = &self.bound.deferred;
        // Expired entries of any shard first, and live ones if none of them is left.
        let remaining = match self.before_write(0, now) {
            true => {
                let earlier = match has_deferred {
                    true => self.store.locate_hash(deferred.deferred_for()),
                    false => location,
                };
                self.evict_for_both(to_evict, &|| [earlier, location], now, drop_queue)
            }
            false => to_evict,
        };
        if remaining > 0 {
            deferred.add(remaining, location.hash());
            // If the call is cancelled, the sweeper evicts the rest.
            self.store.journal().request_wake();
        }
    }

    fn evict_deferred(&self, now: &impl Now) -> bool {
        let Self { bound, store } = self;
        if bound.deferred.weight() == 0 {
            return false;
        }
        // Before the turn, as this drops values: their `Drop` may write to this cache, and so wait for the turn.
        if !self.before_write(0, now) {
            return true;
        }
        let mut drop_queue = DropQueue::new();
        if let Some(turn) = bound.deferred.try_begin_turn() {
            let deferred = bound.deferred.weight();
            // Other writers and removals may have freed weight in the meantime.
            let to_evict = deferred.min(bound.excess());
            let exempt = || bound.deferred.exempt().map(|hash| store.locate_hash(hash));
            match self.evict_for_both(to_evict, &exempt, now, &mut drop_queue) {
                0 => turn.settle(deferred),
                remaining => turn.settle(to_evict - remaining),
            }
        }
        drop_queue.drop_all();
        bound.deferred.weight() > 0
    }

    /// Returns whether entries may be resident that no look-up returns: expired ones, and values with removed tags.
    /// They are removed before live ones are evicted.
    #[inline]
    fn may_have_unreadable(&self, now: &impl Now) -> bool {
        self.bound.may_have_expired(now) || self.store.has_tag_removals()
    }

    #[cold]
    fn expire_to_fit(&self, weight: u64, now: &impl Now) -> bool {
        let Self { bound, store } = self;
        let mut steps = 0;
        while bound.excess_with(weight) > 0 && bound.may_have_expired(now) {
            if steps == MAX_EXPIRY_STEPS {
                return false;
            }
            steps += 1;
            bound.earliest_expiry.store(u64::MAX, Relaxed);
            // Store buffering, with `Shard::note_deadline`, which stores the earliest expiry of its shard, and only
            // then, after a fence, reads the bound's: after this fence, either the loads of `meta` below return a
            // writer's earlier deadline, or that writer sees `u64::MAX` here and lowers it again. A writer that does
            // not lower its shard's earliest expiry follows, under the same lock, one that did.
            fence(SeqCst);
            let mut earliest = u64::MAX;
            for shard in 0..store.shard_count() {
                let found = match store.context().is_due(shard, now) {
                    true => self.expire_window(shard, now),
                    false => Some(store.context().meta[shard].earliest_expiry.load(Relaxed)),
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
        if store.has_tag_removals() {
            self.purge_tags_to_fit(weight, now);
        }
        true
    }

    /// Removes values with removed tags, some windows at a time, as long as `weight` more would exceed the limit. No
    /// index shows where they are, so one call examines a limited number of entries, and the next writer continues
    /// there: each removal of a tag costs the writers at most about one pass over the table.
    #[cold]
    fn purge_tags_to_fit(&self, weight: u64, now: &impl Now) {
        let mut cost = 0;
        while cost < MAX_PURGE_COST {
            let to_free = self.bound.excess_with(weight);
            if to_free == 0 {
                return;
            }
            let Some(examined) = self.store.continue_tag_purge(to_free, now) else { return };
            cost += examined + PURGE_COST_OF_LOCK;
        }
    }

    /// Removes the expired entries of the next window that has any. If the shard has none, returns a time before which
    /// none of its entries expires.
    fn expire_window(&self, shard: usize, now: &impl Now) -> Option<u64> {
        let mut expired = Vec::new();
        let mut locked = self.store.lock_shard(shard).unless_moving().ok()?;
        let now = now.tick();
        let nothing_before = locked.expire_window(self.store.stale_cutoff(now), now, &mut expired);
        drop(locked);
        panics::drop_all(expired);
        nothing_before
    }

    /// Evicts at most `to_evict` of live entries of any shard, as [`evict_from_any_shard`](Self::evict_from_any_shard)
    /// does, for the entries of two writes. If they do not fit together, the later one, which comes second, displaces
    /// the other. Returns the remaining weight to evict; zero if there is no entry to evict.
    #[cold]
    fn evict_for_both(
        &self,
        to_evict: u64,
        exempt: &dyn Fn() -> [Location; 2],
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        let both = || exempt().map(Some);
        self.evict_from_any_shard(to_evict, &both, now, drop_queue)
            .or_else(|remaining| {
                let later = || [None, Some(exempt()[1])];
                self.evict_from_any_shard(remaining, &later, now, drop_queue)
            })
            .unwrap_or(0)
    }

    /// Evicts at most `to_evict` of live entries of any shard, in about a millisecond, until the store is within its
    /// bound. Never evicts the entries of the keys at `exempt`. Returns the remaining weight to evict, as an error if
    /// there is no other entry.
    #[cold]
    fn evict_from_any_shard(
        &self,
        mut to_evict: u64,
        exempt: &dyn Fn() -> [Option<Location>; 2],
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> Result<u64, u64> {
        let Self { bound, store } = self;
        let shards = store.shard_count();
        let first = bound.next_shard(shards);
        // The first round skips locked shards, and some shards that have only protected entries. If it frees nothing,
        // the next one waits for each lock in turn, and protects no entries. If that frees nothing either, only exempt
        // entries are left, or the writers that hold the rest will evict it themselves.
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
                    true => Some(store.lock_shard(index)),
                    false => store.try_lock_shard(index),
                };
                let Some(mut locked) = locked else { continue };
                // Under the lock, see `after_write`.
                let buckets = exempt().map(|exempt| {
                    let here = exempt.filter(|exempt| exempt.shard() == index)?;
                    locked.bucket_of_hash(here.hash())
                });
                let may_decline = !blocks && step < MAX_DECLINING_SHARDS;
                let freed = locked.evict(to_evict, buckets, may_decline, now, drop_queue);
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
    use std::{
        hash::{BuildHasherDefault, DefaultHasher as SipHasher},
        sync::Arc,
    };

    use rand::{RngExt, SeedableRng, rngs::SmallRng};

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
        assert!(store.is_shrinking(0));
        put(&weightless[0], 1_000);
        assert_eq!(store.get(&weightless[0], &Tick::EPOCH), Some(1_000));
        assert_eq!(store.weight(), 1_000);
    }

    /// The unread entries of a shard often weigh less than the next one. Then those of other shards are evicted, even
    /// if the shard is not small. And a scanned key whose hash resembles that of an evicted one, as with the last two
    /// seeds, pays for no eviction.
    #[test]
    fn scan_of_entries_with_weights_leaves_the_hot_set() {
        for seed in [1, 14, 73] {
            let mut random = SmallRng::seed_from_u64(seed);
            // Without a random seed, so that the test is repeatable.
            let hasher = BuildHasherDefault::<SipHasher>::default();
            let store = Store::<u64, u32, _>::new(16, 0, hasher);
            let store =
                store.evicting(4_000, Some(Arc::new(|_: &u64, weight: &u32| *weight)), || {
                    random.random()
                });
            let mut random = SmallRng::seed_from_u64(seed);
            let mut request = |key: u64| {
                let key = seed << 32 | key;
                if store.get(&key, &Tick::EPOCH).is_none() {
                    let weight = random.random_range(1..=7);
                    store.set(key, weight, &Tick::EPOCH, |_| Deadline::PERSISTENT);
                }
            };
            // Earlier traffic, so that the shards have read entries.
            let mut recent = SmallRng::seed_from_u64(seed);
            for _ in 0..8_000 {
                request(1_000_000 + (4_000_f64).powf(recent.random::<f64>()) as u64);
            }
            (0..1_000).for_each(&mut request);
            (0..10).for_each(|_| (0..100).for_each(&mut request));
            (2_000_000..2_010_000).for_each(&mut request);
            let stays = |key: &u64| store.get(&(seed << 32 | key), &Tick::EPOCH).is_some();
            let stayed = (0..100).filter(stays).count();
            assert!(stayed >= 95, "{stayed} of 100 hot entries stay, seed {seed}");
        }
    }
}
