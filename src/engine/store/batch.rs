//! Operations on many keys: prefetches the memory of all keys at once, and locks a shard once for a group of its keys.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{Location, Store, write::notify_insert_waiters};
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::Cause,
    panics,
    shard::{entry::Entry, remove::DropQueue, table::Table},
};

/// Maximum number of keys per call of an operation. Large enough that several keys fall into the same shard. Small
/// enough that the prefetched memory stays in the processor's caches, and that the task yields soon.
pub(crate) const PART: usize = 1_024;

/// Maximum number of keys that are handled under one lock, which then takes a few microseconds.
const MAX_GROUP: usize = 32;

/// Total size of tables, in bytes, below which they stay in the processor's caches and prefetching gains nothing.
const CACHED_BYTES: usize = 2 << 20;

/// Locations of a batch of keys, in the order in which they are handled.
pub(crate) struct Places {
    hashes: Vec<u64>,
    /// The shard of each key in the upper half, its position in the batch in the lower half: one word, which sorts
    /// fast.
    order: Vec<u64>,
    /// Number of keys that were handled.
    done: usize,
}

/// Some keys of a batch, all of one shard.
#[derive(Clone, Copy)]
struct KeysOfShard<'a> {
    hashes: &'a [u64],
    order: &'a [u64],
}

/// Insert waiters of the written keys. Notifies them when it is dropped: after the unlock, and also if user code panics
/// after some keys were written.
#[derive(Default)]
struct NotifyOnDrop(Vec<Arc<Notify>>);

impl Places {
    fn new(places: impl Iterator<Item = Location>) -> Self {
        let words = places.zip(0_u32..).map(|(location, position)| {
            (location.hash, (location.index as u64) << u32::BITS | u64::from(position))
        });
        let (hashes, order) = words.unzip();
        Self { hashes, order, done: 0 }
    }

    /// Sorts the keys by shard, in their original order within a shard. Uses a counting sort, unless there are far more
    /// shards than keys.
    fn sort(&mut self, shards: usize) {
        if shards > 4 * self.order.len() {
            return self.order.sort_unstable();
        }
        let mut starts = vec![0; shards];
        self.order.iter().for_each(|word| starts[shard_of(*word)] += 1);
        let mut start = 0;
        starts.iter_mut().for_each(|count| start += mem::replace(count, start));
        for word in mem::replace(&mut self.order, vec![0; start]) {
            let next = &mut starts[shard_of(word)];
            self.order[*next] = word;
            *next += 1;
        }
    }

    /// Returns the next keys to handle under one lock.
    fn next_group(&mut self) -> Option<KeysOfShard<'_>> {
        let remaining = self.order.get(self.done..)?;
        let shard = remaining.chunk_by(|a, b| shard_of(*a) == shard_of(*b)).next()?;
        let order = &shard[..shard.len().min(MAX_GROUP)];
        self.done += order.len();
        Some(KeysOfShard { hashes: &self.hashes, order })
    }

    fn are_done(&self) -> bool {
        self.done == self.order.len()
    }
}

impl KeysOfShard<'_> {
    fn shard(&self) -> usize {
        shard_of(self.order[0])
    }

    /// Returns the positions of the keys in the batch.
    fn positions(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|word| position_of(*word))
    }

    fn places(&self) -> impl Iterator<Item = (Location, usize)> {
        let index = self.shard();
        self.positions()
            .map(move |position| (Location { hash: self.hashes[position], index }, position))
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns the locations of `keys`, grouped by shard and in their order within a shard, and prefetches their
    /// memory.
    pub(crate) fn locate_all<'a, Q>(&self, keys: impl Iterator<Item = &'a Q>) -> Places
    where
        Q: Hash + ?Sized + 'a,
    {
        let mut places = Places::new(keys.map(|key| self.locate(key)));
        places.sort(self.shard_count());
        self.prefetch(&places);
        places
    }

    /// Returns the locations of keys to be written, as [`locate_all`](Self::locate_all) does. In a store that evicts,
    /// the keys stay in their order. If they were grouped by shard, keys of the last shards would evict each other
    /// while those of the first stay.
    pub(crate) fn locate_all_to_put<'a>(&self, keys: impl Iterator<Item = &'a K>) -> Places
    where
        K: 'a,
    {
        if self.context.evicting_bound().is_none() {
            return self.locate_all(keys);
        }
        let places = Places::new(keys.map(|key| self.locate(key)));
        self.prefetch(&places);
        places
    }

    /// Looks keys up as [`get`](Self::get) does, until the coarse clock ticks. Returns whether all keys were handled.
    pub(crate) fn get_many<Q>(
        &self,
        places: &mut Places,
        keys: &[&Q],
        values: &mut [Option<V>],
        now: &impl Now,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        while let Some(group) = places.next_group() {
            self.get_group(group, keys, values, now);
            if now.has_ticked() {
                break;
            }
        }
        places.are_done()
    }

    /// Writes entries as [`set`](Self::set) does, until the coarse clock ticks. Returns whether all were handled.
    /// Written entries are taken out of `entries`, so that after a panic of user code the caller drops only the others.
    ///
    /// In a store that evicts, each entry is written under a lock of its own, because other shards may have to be
    /// locked to evict from them. So is each one that expires at once, which may not stay for its stale window.
    pub(crate) fn set_many(
        &self,
        places: &mut Places,
        entries: &mut [Option<(K, V)>],
        now: &impl Now,
        deadline: impl Fn() -> Deadline,
    ) -> bool
    where
        V: Clone,
    {
        let mut drop_queue = DropQueue::new();
        let evicts = self.context.evicting_bound().is_some();
        let is_one_by_one = evicts || self.expires_at_once(&deadline, now);
        while let Some(group) = places.next_group() {
            if !is_one_by_one {
                self.set_group(group, entries, now, &deadline, &mut drop_queue);
            } else {
                for position in group.positions() {
                    let Some((key, value)) = entries[position].take() else { continue };
                    panics::drop_all(self.set(key, value, now, |_| deadline()));
                }
            }
            if now.has_ticked() || self.has_deferred_evictions() {
                break;
            }
        }
        places.are_done()
    }

    /// Removes the live values of keys, until the coarse clock ticks, and adds their number to `removed`. Returns
    /// whether all keys were handled. Expires entries whose deadlines have passed.
    pub(crate) fn remove_many<Q>(
        &self,
        places: &mut Places,
        keys: &[&Q],
        now: &impl Now,
        removed: &mut usize,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut drop_queue = DropQueue::new();
        while let Some(group) = places.next_group() {
            *removed += self.remove_group(group, keys, now, &mut drop_queue);
            if now.has_ticked() {
                break;
            }
        }
        places.are_done()
    }

    /// Looks up the keys of one group under one lock, or one by one if reads are tracked or tags were removed.
    fn get_group<Q>(
        &self,
        group: KeysOfShard<'_>,
        keys: &[&Q],
        values: &mut [Option<V>],
        now: &impl Now,
    ) where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        if self.tracks_access() || self.has_tag_removals() {
            for position in group.positions() {
                values[position] = self.get(keys[position], now);
            }
            return;
        }
        let mut expired = Vec::new();
        let shard = self.shards.read(group.shard());
        for (location, position) in group.places() {
            let Some(entry) = shard.find(location.hash, keys[position]) else { continue };
            match now.is_expired(entry.deadline()) {
                true => expired.push((location, position, entry.deadline())),
                false => values[position] = Some(entry.value.clone()),
            }
        }
        drop(shard);
        for (location, position, deadline) in expired {
            self.confirm_expired(location, keys[position], deadline, now);
        }
        for position in group.positions() {
            self.reads.count(values[position].is_some());
        }
    }

    /// Writes the entries of one group under one lock. Only for stores that do not evict, and deadlines that are ahead.
    fn set_group(
        &self,
        group: KeysOfShard<'_>,
        entries: &mut [Option<(K, V)>],
        now: &impl Now,
        deadline: &impl Fn() -> Deadline,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let mut insert_waiters = NotifyOnDrop::default();
        drop_queue.reserve(group.order.len());
        let mut locked = self.lock_shard(group.shard());
        for (location, position) in group.places() {
            let Some((key, _)) = &entries[position] else { continue };
            locked.ensure_moved(location.hash, key);
            let found = locked.find_shared(location.hash, key);
            let found = found.map(|(bucket, entry)| {
                let is_expired = now.is_expired(entry.deadline());
                let cause = if is_expired { Cause::Expired } else { Cause::Replaced };
                (bucket, locked.cause_of(bucket, cause))
            });
            locked.bump_write_version(location.hash, key);
            // All user code has run: a panic can no longer lose this entry.
            let Some((key, mut value)) = entries[position].take() else { continue };
            insert_waiters.0.extend(locked.insert_waiters(location.hash));
            let hard_deadline = deadline();
            let entry_deadline = self.deadline_after_write(hard_deadline, now);
            let Some((bucket, cause)) = found else {
                let entry = Entry::new(value, entry_deadline);
                let bucket = locked.insert(location.hash, key, entry);
                locked.write_side_tables(bucket, hard_deadline, None);
                continue;
            };
            let before = locked.entry_at_mut(bucket).swap(&mut value, entry_deadline);
            locked.note_deadline(bucket, entry_deadline);
            locked.write_side_tables(bucket, hard_deadline, None);
            // The map keeps its own equal key; the caller's key departs with the old value.
            locked.depart(key, Entry::new(value, before), cause, now, drop_queue);
        }
        drop(locked);
        drop_queue.drop_entries();
    }

    /// Removes the keys of one group under one lock. Returns the number of live values.
    fn remove_group<Q>(
        &self,
        group: KeysOfShard<'_>,
        keys: &[&Q],
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut removed = 0;
        drop_queue.reserve(group.order.len());
        let mut locked = self.lock_shard(group.shard());
        for (location, position) in group.places() {
            let key = keys[position];
            locked.ensure_moved(location.hash, key);
            locked.bump_write_version(location.hash, key);
            let found = locked.find_shared(location.hash, key);
            let Some((bucket, entry)) = found else { continue };
            let is_expired = now.is_expired(entry.deadline());
            let is_live = !is_expired && !locked.is_tag_removed(bucket);
            let cause = if is_expired { Cause::Expired } else { Cause::Removed };
            removed += usize::from(is_live);
            locked.remove(bucket, cause, now, drop_queue);
        }
        drop(locked);
        drop_queue.drop_entries();
        removed
    }

    /// Prefetches the memory in which the keys are searched: first the control bytes of all, then the entries.
    fn prefetch(&self, places: &Places) {
        let Some(first) = places.order.first() else { return };
        let buckets = self.shard_count() * self.shards.read(shard_of(*first)).buckets();
        if buckets * size_of::<(K, Entry<V>)>() < CACHED_BYTES {
            return;
        }
        for prefetch in [Table::prefetch_group, Table::prefetch_entry] {
            for group in places.order.chunk_by(|a, b| shard_of(*a) == shard_of(*b)) {
                let shard = self.shards.read(shard_of(group[0]));
                group.iter().for_each(|word| prefetch(&shard, places.hashes[position_of(*word)]));
            }
        }
    }
}

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|insert_waiters| notify_insert_waiters(Some(insert_waiters)));
    }
}

#[inline]
fn shard_of(word: u64) -> usize {
    (word >> u32::BITS) as usize
}

#[inline]
fn position_of(word: u64) -> usize {
    word as u32 as usize
}
