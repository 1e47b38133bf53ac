//! Everything that the lock of one shard guards, behind one type: a shard that is locked for writing. And what each of
//! its changes entails: to overwrite a value is an access to its entry.
//!
//! The fields of a shard's state are private to this module, so that no other module changes one part of a shard and
//! forgets the rest. Nothing here knows the store, which locks the shards and owns their [`ShardContext`].

pub(crate) mod clear;
pub(crate) mod context;
pub(crate) mod entry;
mod evict;
mod expiry_index;
mod gate;
mod rehash;
pub(crate) mod remove;
pub(crate) mod shard_state;
pub(crate) mod side_tables;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod table_cursor;
pub(crate) mod tags;

use std::{
    hash::{BuildHasher, Hash},
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use self::{
    context::ShardContext, entry::Entry, shard_state::ShardState, table::ShardWriteGuard,
    tags::TagSet,
};
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::DepartureSignal,
    waiters::{DepartureWaiters, Waiters, flight::Flight},
};

/// A shard that is locked for writing.
pub(crate) struct Shard<'a, K, V, S> {
    context: &'a ShardContext<K, V, S>,
    guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    /// Weight of removed entries that was not yet subtracted from the bound.
    freed: u64,
}

impl<'a, K, V, S> Shard<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    #[inline]
    pub(crate) fn new(
        context: &'a ShardContext<K, V, S>,
        guard: ShardWriteGuard<'a, K, V, ShardState<K, V>>,
    ) -> Self {
        Self { context, guard, freed: 0 }
    }

    /// Returns the entry of `key` and its bucket. Searches only the current table: see
    /// [`ensure_moved`](Self::ensure_moved).
    #[inline]
    pub(crate) fn find<Q>(&mut self, hash: u64, key: &Q) -> Option<(usize, &mut Entry<V>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.guard.parts().0.find_mut(hash, |k, _| key.equivalent(k))
    }

    /// Returns the entry of this hash for which `matches` returns true, as [`find`](Self::find) does.
    pub(crate) fn find_where(
        &mut self,
        hash: u64,
        matches: impl FnMut(&K, &Entry<V>) -> bool,
    ) -> Option<(usize, &mut Entry<V>)> {
        self.guard.parts().0.find_mut(hash, matches)
    }

    /// As [`find`](Self::find), without exclusive access.
    #[inline]
    pub(crate) fn find_shared<Q>(&self, hash: u64, key: &Q) -> Option<(usize, &Entry<V>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.guard.find(hash, key)
    }

    /// Returns the key and the entry in `bucket`, if it holds one.
    #[inline]
    pub(crate) fn entry_at(&self, bucket: usize) -> Option<(&K, &Entry<V>)> {
        self.guard.entry_at(bucket)
    }

    /// Returns the hard deadline of `entry` in `bucket`: its own, unless entries have idle deadlines.
    #[inline]
    pub(crate) fn hard_deadline(&self, bucket: usize, entry: &Entry<V>) -> Deadline {
        let hard_deadline = self.guard.state().side_tables.hard_deadline(bucket);
        hard_deadline.unwrap_or_else(|| entry.deadline())
    }

    /// Stores hard deadlines from now on, because entries get idle deadlines too.
    pub(crate) fn track_hard_deadlines(&mut self) {
        let (table, state) = self.guard.parts();
        state.side_tables.track_hard_deadlines(table.buckets());
    }

    /// Returns the weight of the entry in `bucket`.
    #[inline]
    pub(crate) fn weight(&self, bucket: usize) -> u32 {
        self.guard.state().side_tables.weight(bucket)
    }

    /// Returns the tags of the entry in `bucket`; `None` if one of them was removed, which has ended its stale window.
    pub(crate) fn current_tags(&self, bucket: usize) -> Option<TagSet> {
        let tags = self.guard.state().side_tables.tags(bucket)?;
        tags.iter().all(|tag| !tag.is_removed()).then_some(tags)
    }

    /// Sets the deadlines of the entry in `bucket`: the one that applies now, and the hard one.
    pub(crate) fn set_deadlines(&mut self, bucket: usize, deadline: Deadline, hard: Deadline) {
        self.entry_at_mut(bucket).set_deadline(deadline);
        self.guard.parts().1.side_tables.set_hard_deadline(bucket, hard);
        self.note_deadline(bucket, deadline);
    }

    /// Returns the deadline of the entry in `bucket` after a call that sets it to `deadline`. If the entry expires by
    /// that, tags that are removed later do not change its cause.
    #[inline]
    pub(crate) fn note_expiry(
        &self,
        bucket: usize,
        deadline: Deadline,
        now: &impl Now,
    ) -> Deadline {
        match self.guard.state().side_tables.tags(bucket) {
            Some(tags) if now.is_expired(deadline) => {
                tags.iter().fold(deadline, |deadline, tag| tag.note_expiry(deadline))
            }
            _ => deadline,
        }
    }

    /// Increments the write version of a key's flight. Every write calls this.
    #[inline]
    pub(crate) fn bump_write_version<Q>(&self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.guard.state().bump_write_version(hash, key);
    }

    /// Returns the flight of a key.
    #[inline]
    pub(crate) fn flight<Q>(&self, hash: u64, key: &Q) -> Option<&Arc<Flight<V>>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.guard.state().flight(hash, key)
    }

    /// Returns the insert waiters for this hash, to be notified after the unlock.
    #[inline]
    pub(crate) fn insert_waiters(&self, hash: u64) -> Option<Arc<Notify>> {
        self.guard.state().insert_waiters(hash)
    }

    /// Records a hit of the entry in `bucket`.
    #[inline]
    pub(crate) fn touch(&self, bucket: usize) {
        self.guard.state().side_tables.touch(bucket);
    }

    /// Returns the waiters, to add one.
    pub(crate) fn waiters_mut(&mut self) -> &mut Waiters<K, V> {
        self.guard.parts().1.waiters_mut()
    }

    /// Joins the tasks that wait for the departure of the entry in `bucket`, which is that of `key`.
    pub(crate) fn await_departure<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        bucket: usize,
    ) -> Arc<DepartureWaiters<K, V>>
    where
        Q: Equivalent<K> + ?Sized,
        K: Clone,
    {
        let (table, state) = self.guard.parts();
        let owned = || {
            let found = table.entry_at(bucket);
            found.expect("the bucket that was just found is full").0.clone()
        };
        let waiters = &mut state.waiters_mut().departure_waiters;
        waiters.join(hash, key, owned, |_| false, DepartureSignal::new).shared
    }

    /// Removes a waiter by `leave`, and the shard's waiters with the last one. The caller drops the result after the
    /// unlock.
    pub(crate) fn leave_waiters(
        &mut self,
        leave: impl FnOnce(&mut Waiters<K, V>) -> Option<K>,
    ) -> (Option<K>, Option<Box<Waiters<K, V>>>) {
        let waiters = &mut self.guard.parts().1.waiters;
        let key = waiters.as_mut().and_then(|waiters| leave(waiters));
        (key, waiters.take_if(|waiters| waiters.is_empty()))
    }

    /// Returns the entry in `bucket`, which must be full.
    #[inline]
    pub(crate) fn entry_at_mut(&mut self, bucket: usize) -> &mut Entry<V> {
        self.guard.parts().0.entry_at_mut(bucket)
    }

    /// Records that the entry in `bucket` expires at `deadline`, in all lower bounds that this may lower.
    #[inline]
    pub(crate) fn note_deadline(&mut self, bucket: usize, deadline: Deadline) {
        let shard = self.guard.index();
        if let Some(earliest) = self.guard.parts().1.index.note_deadline(bucket, deadline) {
            self.context.note_earliest_expiry(shard, earliest);
        }
        // After the shard's own earliest expiry: see `MakeRoom::expire_to_fit`.
        if let Some(bound) = self.context.evicting_bound() {
            bound.note_deadline(deadline);
        }
    }

    /// Writes the side tables for a value that was written to `bucket`.
    #[inline]
    pub(crate) fn write_side_tables(
        &mut self,
        bucket: usize,
        hard_deadline: Deadline,
        tags: Option<TagSet>,
    ) {
        if tags.is_some() || self.guard.state().side_tables.has_extra() {
            self.write_extra(bucket, hard_deadline, tags);
        }
    }

    fn write_extra(&mut self, bucket: usize, hard_deadline: Deadline, tags: Option<TagSet>) {
        let side_tables = &mut self.guard.parts().1.side_tables;
        let is_tagged = tags.is_some();
        side_tables.write(bucket, hard_deadline, tags);
        if is_tagged && side_tables.is_removed(bucket, Deadline::PERSISTENT) {
            // The tag was removed after the caller had looked it up and before the value was written.
            self.context.tag_removals.note();
        }
    }

    /// Prefetches what [`note_inserted`](Self::note_inserted) reads, while an entry is evicted for the new key.
    #[inline]
    pub(crate) fn prefetch_inserted(&self, hash: u64) {
        if let Some(eviction) = &self.guard.state().side_tables.eviction {
            eviction.prefetch_inserted(hash);
        }
    }

    /// Passes the entry of a new key to the eviction policy, and adds its weight. Returns how much of it is above the
    /// bound, which the caller must evict.
    #[inline]
    pub(crate) fn note_inserted(&mut self, bucket: usize, hash: u64, weight: u32) -> u64 {
        let Some(bound) = self.context.evicting_bound() else { return 0 };
        let (table, state) = self.guard.parts();
        let len = table.len();
        if let Some(eviction) = &mut state.side_tables.eviction {
            eviction.inserted(bucket, hash, weight, len);
        }
        bound.adjust(u64::from(weight), self.take_freed())
    }

    /// Records an overwritten entry's access and new weight. Returns how much the weight grew beyond the bound, which
    /// the caller must evict.
    #[inline]
    pub(crate) fn update_weight(&mut self, bucket: usize, weight: u32) -> u64 {
        let Some(bound) = self.context.evicting_bound() else { return 0 };
        let Some(eviction) = &mut self.guard.parts().1.side_tables.eviction else { return 0 };
        eviction.touch(bucket);
        if !bound.has_weigher() {
            return 0;
        }
        bound.adjust(u64::from(weight), eviction.set_weight(bucket, weight))
    }
}

impl<'a, K, V, S> Shard<'a, K, V, S> {
    /// Returns the data that all shards share.
    #[inline]
    pub(crate) fn context(&self) -> &'a ShardContext<K, V, S> {
        self.context
    }

    /// Subtracts the weight of the removed entries from the bound.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.freed > 0
            && let Some(bound) = &self.context.bound
        {
            bound.release(mem::take(&mut self.freed));
        }
    }
}

/// Under the lock, so that the weight in use never lacks an entry that another caller can see.
impl<K, V, S> Drop for Shard<'_, K, V, S> {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

impl<'a, K, V, S> Deref for Shard<'a, K, V, S> {
    type Target = ShardWriteGuard<'a, K, V, ShardState<K, V>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<K, V, S> DerefMut for Shard<'_, K, V, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}
