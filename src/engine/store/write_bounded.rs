//! Writes to a store that evicts entries to stay within its bound.
//!
//! Victims in the written shard are evicted before the new entry is inserted, under the same lock. So the bound is not
//! exceeded, even for a moment, if that shard has enough entries to evict.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{
    Location, Store,
    bound::Bound,
    entry::{Cause, Entry},
    shard::{DropQueue, Shard},
    tags::TagSet,
    window,
    write::{Decision, Written, notify_insert_waiters},
};
use crate::engine::clock::{Deadline, Now};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Does the work of [`Store::decide`] in a store that evicts.
    pub(super) fn decide_bounded(
        &self,
        bound: &Bound<K, V>,
        key: K,
        weight: Option<u32>,
        tags: Option<TagSet>,
        now: &impl Now,
        decide: impl FnOnce(Option<(&V, Deadline)>) -> Decision<V>,
    ) -> Written<V>
    where
        V: Clone,
    {
        let location @ Location { hash, index } = self.place(&key);
        self.expire_to_fit(bound, u64::from(weight.unwrap_or(1)), now);
        // Declared before `locked`, so that they are dropped after the unlock if user code panics.
        let (value, hard_deadline);
        let (mut drop_queue, mut replaced) = (DropQueue::new(), None);
        let mut locked = self.lock_key(location, &key, now);
        let mut live_bucket = None;
        let (table, state) = locked.parts();
        let found = window::find(table, hash, |k| *k == key);
        let (mut expired, mut live) = (None, None);
        if let Some((bucket, entry)) = found {
            if now.is_expired(entry.deadline()) {
                expired = Some(bucket);
            } else {
                live_bucket = Some((bucket, entry.deadline()));
                let hard_deadline = state.side_tables.hard_deadline(bucket);
                live = Some((&entry.value, hard_deadline.unwrap_or_else(|| entry.deadline())));
            }
        }
        match decide(live) {
            Decision::Put(new, until) => (value, hard_deadline) = (new, until),
            Decision::Remove => {
                state.bump_write_version(hash, &key);
                let Some(bucket) = expired.or(live_bucket.map(|(bucket, _)| bucket)) else {
                    // Unlocked explicitly: `key` is a parameter, but dropping it is user code that must not run under
                    // the lock.
                    drop(locked);
                    return Written::Unchanged;
                };
                let removed = self.remove_found(locked, bucket, now, Cause::Removed);
                return Written::Removed(removed);
            }
            Decision::Leave => {
                drop(locked);
                return Written::Unchanged;
            }
        }
        let weight = weight.unwrap_or_else(|| bound.weigh(&key, &value));
        let is_too_heavy = u64::from(weight) > bound.limit();
        state.bump_write_version(hash, &key);
        let insert_waiters = state.insert_waiters(hash);
        if let Some(bucket) = expired {
            locked.remove(bucket, Cause::Expired, now, &mut drop_queue);
            locked.release();
        }
        let entry_deadline = self.deadline_after_write(hard_deadline, now);
        if let Some((bucket, deadline)) = live_bucket {
            let (table, state) = locked.parts();
            let (_, entry) =
                window::find(table, hash, |k| *k == key).expect("the entry was just found");
            // Cloned before the entry is changed: if the clone panics, nothing has changed.
            let copy = || entry.value.clone();
            let has_subscriber = self.journal.has_subscriber(Cause::Replaced)
                || state.has_departure_waiters(hash, &key);
            let copy = has_subscriber.then(copy);
            let more = weight.saturating_sub(state.side_tables.weight(bucket));
            let resident = !is_too_heavy
                && (bound.excess_of(u64::from(more)) == 0 || !now.is_expired(entry_deadline));
            if resident {
                let old = entry.replace(value, entry_deadline);
                self.note_deadline(state, index, bucket, entry_deadline);
                self.write_side_tables(state, bucket, hard_deadline, tags);
                locked.record_replaced(key, copy, deadline, now, &mut drop_queue);
                self.update_weight(bound, locked, location, bucket, weight, now, drop_queue);
                notify_insert_waiters(insert_waiters);
                return Written::Put { replaced: Some(old.value), resident: true };
            }
            replaced = Some(locked.take_replaced(bucket, copy, now, &mut drop_queue));
        }
        let entry = Entry::new(value, entry_deadline);
        let excess = bound.excess_of(u64::from(weight));
        let discard_cause = match () {
            () if is_too_heavy => Some(Cause::Evicted),
            // No live entry is evicted for a value that has already expired.
            () if excess > 0 && now.is_expired(entry.deadline()) => Some(Cause::Expired),
            () => None,
        };
        if let Some(cause) = discard_cause {
            locked.depart(key, entry, cause, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
            return Written::Put { replaced, resident: false };
        }
        // Expired entries are removed before live ones are evicted: `evict_to_fit` does both after this insert.
        if excess > 0 && !bound.may_have_expired(now) {
            self.evict(&mut locked, excess, None, now, &mut drop_queue);
        }
        let bucket = self.insert(&mut locked, location, key, entry);
        let (table, state) = locked.parts();
        let len = table.len();
        if let Some(eviction) = &mut state.side_tables.eviction {
            eviction.inserted(bucket, hash, weight, len);
        }
        self.write_side_tables(state, bucket, hard_deadline, tags);
        let to_evict = bound.adjust(u64::from(weight), locked.take_freed());
        self.evict_to_fit(bound, locked, location, bucket, to_evict, now, drop_queue);
        notify_insert_waiters(insert_waiters);
        Written::Put { replaced, resident: true }
    }

    /// Calls `change` with the live value, and then the weigher, under the shard's lock. Expires the entry if its
    /// deadline has passed.
    pub(super) fn change_bounded<Q, R>(
        &self,
        bound: &Bound<K, V>,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location @ Location { hash, .. } = self.place(key);
        let mut locked = self.lock_key(location, key, now);
        let (table, state) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| key.equivalent(k))?;
        if now.is_expired(entry.deadline()) {
            if self.is_past_stale_window(entry.deadline(), now) {
                self.expire_found(locked, bucket, now);
            }
            return None;
        }
        state.bump_write_version(hash, key);
        let changed = change(&mut entry.value);
        let entry = window::entry_at(locked.parts().0, bucket);
        let (key, entry) = entry.expect("the bucket that was just found is full");
        let weight = bound.weigh(key, &entry.value);
        let mut drop_queue = DropQueue::new();
        if u64::from(weight) > bound.limit() {
            locked.remove(bucket, Cause::Evicted, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
        } else {
            self.update_weight(bound, locked, location, bucket, weight, now, drop_queue);
        }
        Some(changed)
    }

    /// Records an overwritten entry's access and new weight, evicts as much as the weight grew beyond the bound, and
    /// unlocks the shard.
    #[allow(clippy::too_many_arguments)]
    fn update_weight(
        &self,
        bound: &Bound<K, V>,
        mut locked: Shard<'_, K, V, S>,
        location: Location,
        bucket: usize,
        weight: u32,
        now: &impl Now,
        drop_queue: DropQueue<K, V>,
    ) {
        let mut to_evict = 0;
        if let Some(eviction) = &mut locked.parts().1.side_tables.eviction {
            eviction.touch(bucket);
            if bound.has_weigher() {
                to_evict = bound.adjust(u64::from(weight), eviction.set_weight(bucket, weight));
            }
        }
        self.evict_to_fit(bound, locked, location, bucket, to_evict, now, drop_queue);
    }

    /// Evicts `to_evict` of weight for the entry that was just written to `bucket`, and unlocks the shard. Evicts
    /// entries of the same shard first; if these are too few, or entries of any shard may have expired, continues after
    /// the unlock.
    #[allow(clippy::too_many_arguments)]
    fn evict_to_fit(
        &self,
        bound: &Bound<K, V>,
        mut locked: Shard<'_, K, V, S>,
        location: Location,
        bucket: usize,
        mut to_evict: u64,
        now: &impl Now,
        mut drop_queue: DropQueue<K, V>,
    ) {
        if to_evict > 0 && !bound.may_have_expired(now) {
            let exempt = Some(bucket);
            let freed = self.evict(&mut locked, to_evict, exempt, now, &mut drop_queue);
            to_evict = to_evict.saturating_sub(freed);
        }
        drop(locked);
        if to_evict > 0 {
            self.expire_to_fit(bound, 0, now);
            self.evict_from_any_shard(bound, to_evict, location, now);
        }
        drop_queue.drop_all();
    }
}
