//! Look-ups of single keys, which remove an expired entry if they find one.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{Location, Store};
use crate::engine::{
    clock::{Deadline, Now},
    shard::{
        entry::Entry,
        shard_state::{FoundEntry, ShardState},
        table::ShardReadGuard,
    },
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns a clone of the live value. Expires the entry if its deadline has passed.
    #[inline]
    pub(crate) fn get<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        if self.tracks_access() {
            return self.get_tracked(key, now, |_, _| ()).map(|(value, ())| value);
        }
        let found = self.read(key, now, |entry| entry.value.clone());
        self.reads.count(found.is_some());
        found
    }

    /// Returns a clone of the live value and its deadline, as [`get`](Self::get) does.
    pub(crate) fn get_with_deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.get_by_deadline(key, now, |_, found| found.entry.deadline())
    }

    /// Returns a clone of the live value and its hard deadline, as [`get`](Self::get) does.
    pub(crate) fn get_with_hard_deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.get_by_deadline(key, now, |shard, found| {
            shard.hard_deadline(found).unwrap_or_else(|| found.entry.deadline())
        })
    }

    /// Does the work of [`get`](Self::get), and also returns a deadline of the entry: by `read` if reads are tracked,
    /// and otherwise the only one.
    #[inline]
    fn get_by_deadline<Q>(
        &self,
        key: &Q,
        now: &impl Now,
        read: impl FnOnce(&ShardReadGuard<'_, K, V, ShardState<K, V>>, &FoundEntry<'_, V>) -> Deadline,
    ) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        if self.tracks_access() {
            return self.get_tracked(key, now, read);
        }
        let found = self.read(key, now, |entry| (entry.value.clone(), entry.deadline()));
        self.reads.count(found.is_some());
        found
    }

    /// Returns a clone of the live value without counting it as a read: neither its idle deadline nor its access word
    /// changes, and no hit or miss is counted.
    pub(crate) fn peek<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.read(key, now, |entry| entry.value.clone())
    }

    /// Returns a clone of the live value and its deadline without counting it as a read, as [`peek`](Self::peek) does.
    pub(crate) fn peek_with_deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.read(key, now, |entry| (entry.value.clone(), entry.deadline()))
    }

    /// Returns a clone of an expired value within its stale window, and its deadline.
    pub(crate) fn get_stale<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let Location { hash, index } = self.locate(key);
        let shard = self.shards.read(index);
        let found = shard.find_at(hash, key)?;
        let deadline = found.entry.deadline();
        let is_stale = now.is_expired(deadline) && !self.is_past_stale_window(deadline, now);
        let is_returned = is_stale && !shard.is_removed(&found, Deadline::PERSISTENT);
        is_returned.then(|| (found.entry.value.clone(), deadline))
    }

    /// Returns whether the value of `key` was removed by one of its tags and is still resident.
    pub(super) fn is_tag_removed<Q>(&self, Location { hash, index }: Location, key: &Q) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        let shard = self.shards.read(index);
        let found = shard.find_at(hash, key);
        found.is_some_and(|found| shard.is_removed(&found, found.entry.deadline()))
    }

    /// Returns whether reads change an entry's access word or its idle deadline.
    #[inline(always)]
    pub(super) fn tracks_access(&self) -> bool {
        self.context.evicting_bound().is_some() || self.time_to_idle.is_some()
    }

    /// Does the work of [`get`](Self::get) if reads are tracked: updates the access word and extends the idle deadline.
    /// Also returns the result of `read` for the entry after that.
    #[inline]
    fn get_tracked<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        read: impl FnOnce(&ShardReadGuard<'_, K, V, ShardState<K, V>>, &FoundEntry<'_, V>) -> R,
    ) -> Option<(V, R)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let location @ Location { hash, index } = self.locate(key);
        self.purge_if_tag_removed(location, key, now);
        let mut shard = self.shards.read(index);
        let (found, read_deadline) = loop {
            let Some(found) = shard.find_at(hash, key) else {
                if shard.was_evicted_recently(hash) {
                    self.reads.count_evicted();
                }
                self.reads.count(false);
                return None;
            };
            let deadline = found.entry.deadline();
            if let Some(read_deadline) = self.deadline_after_read(deadline, now) {
                break (found, read_deadline);
            }
            drop(shard);
            if self.confirm_expired(location, key, deadline, now) {
                self.reads.count(false);
                return None;
            }
            shard = self.shards.read(index);
        };
        // Before the clone: cloning an `Arc` is an atomic read-modify-write, which waits for all earlier loads.
        shard.touch(&found);
        // The hard deadline is on another cache line. A coarse clock gives the same idle deadline until its next tick,
        // so only the first hit of a tick loads that line.
        if read_deadline.is_later_than(found.entry.deadline())
            && let Some(hard_deadline) = shard.hard_deadline(&found)
        {
            found.entry.put_off(hard_deadline.sooner(read_deadline));
        }
        let value = found.entry.value.clone();
        let read = read(&shard, &found);
        drop(shard);
        self.reads.count(true);
        Some((value, read))
    }

    /// Returns the deadline of the live entry. Expires the entry if its deadline has passed.
    pub(crate) fn deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.read(key, now, Entry::deadline)
    }

    /// Calls `read` with the live entry under the read lock. Expires the entry if its deadline has passed.
    #[inline]
    fn read<Q, R>(&self, key: &Q, now: &impl Now, read: impl FnOnce(&Entry<V>) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location @ Location { hash, index } = self.locate(key);
        self.purge_if_tag_removed(location, key, now);
        loop {
            let shard = self.shards.read(index);
            let entry = shard.find(hash, key)?;
            let deadline = entry.deadline();
            if !now.is_expired(deadline) {
                return Some(read(entry));
            }
            drop(shard);
            if self.confirm_expired(location, key, deadline, now) {
                return None;
            }
        }
    }

    /// Handles an entry that a reader found expired at `deadline`. Returns true if the key has no live value, and false
    /// if the look-up must be repeated because it has one again.
    ///
    /// Removes the entry unless it is within its stale window. With idle deadlines, this must be decided under the
    /// write lock: another reader that read the clock before the deadline may extend the entry only now. The write lock
    /// waits for that reader. So either the entry is removed, or its extended deadline is seen here and the entry was
    /// never reported as missing.
    #[cold]
    pub(super) fn confirm_expired<Q>(
        &self,
        location: Location,
        key: &Q,
        deadline: Deadline,
        now: &impl Now,
    ) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        if self.time_to_idle.is_none() && !self.is_past_stale_window(deadline, now) {
            return true;
        }
        let locked = self.lock_entry(location, key);
        // Searched again: between the two locks, another caller may have written a live value or removed the entry.
        let found = locked.find_shared(location.hash, key);
        let Some((bucket, deadline)) = found.map(|(bucket, entry)| (bucket, entry.deadline()))
        else {
            return true;
        };
        if self.is_past_stale_window(deadline, now) {
            self.expire_found(locked, bucket, now);
            return true;
        }
        now.is_expired(deadline)
    }
}
