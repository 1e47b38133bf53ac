//! Eviction: removes entries so that the store stays within its bound after each write.
//!
//! 1. Expired entries are removed first, whichever shard they are in: [`Store::expire_to_fit`].
//! 2. Then live entries of the written shard are evicted, under the same lock as the write. Entries of other shards are
//!    evicted only if that shard has too few. No two shards are locked at the same time.
//! 3. A writer frees the weight by which its own write exceeded the bound, and does so before it returns. A removal
//!    releases its weight under the lock of its shard.

use std::hash::{BuildHasher, Hash};

use super::{
    Location, ShardState, Store,
    bound::{self, Bound, Weigher},
    counters::bump,
    entry::{Cause, Departure, Entry},
    eviction_state::EvictionState,
    policy::Policy,
    window::{self, ShardWriteGuard, WINDOW},
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

/// Removed entries that are dropped after the lock is released. Holds one entry without an allocation, which is the
/// usual case.
pub(super) struct DropQueue<K, V> {
    first: Option<(K, V)>,
    more: Vec<(K, V)>,
    /// The caller's key, if the map already had an equal one.
    key: Option<K>,
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
            let mut locked = self.shards.write(index);
            bound.release(self.evict(&mut locked, index, excess, None, now, &mut drop_queue));
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

    /// Removes expired entries of any shard, window by window, as long as `weight` more would exceed the limit.
    ///
    /// An index moment may be too early. So some windows are examined without finding an expired entry; each such
    /// examination corrects the index.
    pub(super) fn expire_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) {
        while bound.used().saturating_add(weight) > bound.limit() && bound.may_have_expired(now) {
            bound.earliest_expiry.store(u64::MAX, Relaxed);
            // Store buffering, with `note_deadline`: after this fence, either the loads of `meta` below return a writer's
            // earlier deadline, or that writer sees `u64::MAX` here and lowers it again.
            //
            // Known gap: that needs the writer to store `meta` before it reads `bound.earliest_expiry`, but
            // `Store::note_deadline` updates `bound` first. If this whole loop runs between its two steps, the deadline is
            // missing here until an earlier one is noted. Live entries may then be evicted before that entry, although
            // it has expired.
            fence(SeqCst);
            let mut earliest = u64::MAX;
            for shard in 0..self.shard_count() {
                let found = match self.is_due(shard, now) {
                    true => self.expire_window(bound, shard, now),
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
    }

    /// Removes the expired entries of the next window that has any. If the shard has none, returns a time before which
    /// none of its entries expires: taken from the deadlines examined, since the index may say that a window is due too
    /// early.
    fn expire_window(&self, bound: &Bound<K, V>, shard: usize, now: &impl Now) -> Option<u64> {
        let mut expired = Vec::new();
        let mut locked = self.shards.write(shard);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, shard);
            drop(locked);
            drop(emptied);
            return None;
        }
        let now = now.tick();
        let (table, ShardState { index, side_tables, waiters, .. }) = locked.parts();
        let buckets = table.buckets();
        let (mut freed, mut next, mut removed) = (0, 0, 0);
        index.rebase(self.stale_cutoff(now));
        let mut nothing_before = index.next_moment(now);
        while expired.is_empty() && next < buckets {
            let Some(start) = index.next_due(next, buckets, now) else { break };
            let taken = |bucket, key, entry: Entry<V>| {
                // By a tag, before its deadline.
                let is_removed = side_tables.is_removed(bucket, entry.deadline());
                removed += u64::from(is_removed);
                freed += side_tables.departed(bucket);
                let cause = if is_removed { Cause::Removed } else { Cause::Expired };
                let mut departure = entry.depart(key, cause, now);
                if let Some(waiters) = waiters {
                    departure.waiters = waiters
                        .take_departure_waiters(&departure.key, |key| self.hash_or_zero(key));
                }
                expired.push(departure);
            };
            let window = start..buckets.min(start + WINDOW);
            next = window.end;
            let (_, _, earliest) = window::take_expired(table, window, usize::MAX, now, taken);
            index.set_window(start, earliest);
            nothing_before = nothing_before.min(earliest.order());
        }
        let found = !expired.is_empty();
        self.meta[shard].earliest_expiry.store(index.recompute_earliest().order(), Relaxed);
        let departures = &self.meta[shard].departures;
        bump(&departures.expired, expired.len() as u64 - removed);
        bump(&departures.removed, removed);
        match removed {
            0 => self.journal.record_all(shard, Cause::Expired, &mut expired),
            _ => self.journal.record_subscribed(shard, &mut expired),
        }
        bound.release(freed);
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
    /// the weight freed.
    pub(super) fn evict(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        shard: usize,
        weight_to_free: u64,
        exempt: Option<usize>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        let (mut freed, mut count) = (0, 0);
        let max_evictions = MAX_EVICTIONS_PER_LOCK.min(1 + locked.len() / 8);
        while freed < weight_to_free && count < max_evictions {
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
            let Some(bucket) = eviction.choose_victim(
                exempt,
                may_have_expired || may_have_tag_removals,
                is_unreadable,
            ) else {
                if state.old.is_none() {
                    break;
                }
                // All candidates are still in the old table.
                let (_, emptied) = self.move_windows(locked, shard);
                debug_assert!(
                    emptied.is_none_or(|table| table.is_empty()),
                    "a table that was moved is empty"
                );
                continue;
            };
            let len = table.len();
            let (key, entry) = window::take_at(table, bucket);
            let is_expired = may_have_expired && now.is_expired(entry.deadline());
            let is_removed =
                may_have_tag_removals && state.side_tables.is_removed(bucket, entry.deadline());
            freed += match is_expired || is_removed {
                true => state.side_tables.departed(bucket),
                false => state.side_tables.evicted(bucket, self.hash_or_zero(&key), len - 1),
            };
            let cause = match () {
                () if is_removed => Cause::Removed,
                () if is_expired => Cause::Expired,
                () => Cause::Evicted,
            };
            self.depart(locked, key, entry, cause, now, drop_queue);
            // Unreadable entries do not count against the limit: they are not evicted, and some of them weigh nothing.
            count += usize::from(!is_expired && !is_removed);
        }
        freed
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
                let Some(mut locked) = locked else { continue };
                let exempt = match index == exempt.shard() {
                    true => {
                        let matches =
                            |key: &K, _: &Entry<V>| self.hash_or_zero(key) == exempt.hash();
                        let found = window::find_where(locked.parts().0, exempt.hash(), matches);
                        found.map(|(bucket, _)| bucket)
                    }
                    false => None,
                };
                let mut drop_queue = DropQueue::new();
                let freed = self.evict(&mut locked, index, to_evict, exempt, now, &mut drop_queue);
                bound.release(freed);
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

    /// Counts and records the departure of an entry that was taken out of its locked shard.
    pub(super) fn depart(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        key: K,
        entry: Entry<V>,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let shard = locked.index();
        let departures = &self.meta[shard].departures;
        let count = match cause {
            Cause::Expired => &departures.expired,
            Cause::Evicted => &departures.evicted,
            Cause::Removed => &departures.removed,
            Cause::Replaced => &departures.replaced,
        };
        bump(count, 1);
        // Without subscribers the departure is not built, since that would read the clock.
        match self.journal.has_subscriber(cause) || locked.state().waiters.is_some() {
            true => {
                let mut departure = entry.depart(key, cause, now.tick());
                self.attach_waiters(locked.parts().1, &mut departure);
                drop_queue.push_departure(self.journal.record(shard, departure));
            }
            false => drop_queue.push(key, entry.value),
        }
    }
}

impl<K, V> DropQueue<K, V> {
    pub(super) fn new() -> Self {
        Self { first: None, more: Vec::new(), key: None }
    }

    /// Reserves capacity for `count` entries; called before the lock, so that nothing is allocated under it.
    pub(super) fn reserve(&mut self, count: usize) {
        self.more.reserve(count.saturating_sub(1));
    }

    pub(super) fn push(&mut self, key: K, value: V) {
        match self.first {
            None => self.first = Some((key, value)),
            Some(_) => self.more.push((key, value)),
        }
    }

    pub(super) fn push_departure(&mut self, departure: Option<Departure<K, V>>) {
        if let Some(Departure { key, value, .. }) = departure {
            self.push(key, value);
        }
    }

    pub(super) fn push_key(&mut self, key: K) {
        self.key = Some(key);
    }

    /// Drops the entries one by one. A panic of a `Drop` is caught: it must not affect the caller, who only wrote
    /// another key.
    pub(super) fn drop_all(mut self) {
        self.drop_entries();
        drop(self.key);
    }

    /// Drops the entries but keeps the capacity.
    pub(super) fn drop_entries(&mut self) {
        panics::drop_all(self.first.take());
        panics::drop_all(self.more.drain(..));
    }
}
