//! What looks a key up, and lets it leave where it is dead.

use std::{
    hash::{BuildHasher, Hash},
    iter,
};

use equivalent::Equivalent;

use super::{
    Location, ShardState, Store,
    entry::Entry,
    window::{self, ShardReadGuard, Table},
};
use crate::engine::clock::{Deadline, Now};

/// Where an entry is.
struct Found<'a, V> {
    bucket: usize,
    /// Whether it has not come to the present table yet.
    in_old_table: bool,
    entry: &'a Entry<V>,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// A clone of the live value. A dead one is expired on the way.
    #[inline]
    pub(crate) fn get<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        if self.tracks_access() {
            return self.get_tracked(key, now).map(|(value, _)| value);
        }
        let found = self.read(key, now, |entry| entry.value.clone());
        self.reads.count(found.is_some());
        found
    }

    /// As [`get`](Self::get), with the deadline.
    pub(crate) fn get_with_deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        if self.tracks_access() {
            return self.get_tracked(key, now);
        }
        let found = self.read(key, now, |entry| (entry.value.clone(), entry.deadline()));
        self.reads.count(found.is_some());
        found
    }

    /// A clone of the live value, which is not read for that.
    pub(crate) fn peek<Q>(&self, key: &Q, now: &impl Now) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.read(key, now, |entry| entry.value.clone())
    }

    /// A clone of a value that is dead and lingers, with when it died.
    pub(crate) fn get_stale<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let Location { hash, index } = self.place(key);
        let shard = self.shards.read(index);
        let found = shard.find_at(hash, key)?;
        let deadline = found.entry.deadline();
        let is_stale = now.is_dead(deadline) && !self.is_past_stale_window(deadline, now);
        let is_returned = is_stale && !shard.is_removed(&found, Deadline::PERSISTENT);
        is_returned.then(|| (found.entry.value.clone(), deadline))
    }

    /// Whether the value of this key was removed by one of its tags.
    pub(super) fn is_tag_removed<Q>(&self, Location { hash, index }: Location, key: &Q) -> bool
    where
        Q: Equivalent<K> + ?Sized,
    {
        let shard = self.shards.read(index);
        let found = shard.find_at(hash, key);
        found.is_some_and(|found| shard.is_removed(&found, found.entry.deadline()))
    }

    /// Whether it matters to somebody that an entry is read.
    #[inline(always)]
    pub(super) fn tracks_access(&self) -> bool {
        self.evicting_bound().is_some() || self.time_to_idle.is_some()
    }

    /// As [`get`](Self::get); and who is read is worth keeping, and lives on.
    #[inline]
    fn get_tracked<Q>(&self, key: &Q, now: &impl Now) -> Option<(V, Deadline)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let location @ Location { hash, index } = self.place(key);
        self.purge_if_tag_removed(location, key, now);
        let mut shard = self.shards.read(index);
        let (found, read_deadline) = loop {
            let Some(found) = shard.find_at(hash, key) else {
                let eviction = shard.state().side_tables.eviction.as_ref();
                if eviction.is_some_and(|eviction| eviction.was_evicted_recently(hash)) {
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
        // Before the clone: that of an `Arc` has the processor wait for all that was read before.
        if !found.in_old_table {
            shard.state().side_tables.touch(found.bucket);
        }
        // Its own deadline is one more line of memory, for which only the first hit of a tick has to wait.
        if read_deadline.is_later_than(found.entry.deadline())
            && let Some(hard_deadline) = shard.hard_deadline(&found)
        {
            found.entry.put_off(hard_deadline.sooner(read_deadline));
        }
        let value = found.entry.value.clone();
        let deadline = found.entry.deadline();
        drop(shard);
        self.reads.count(true);
        Some((value, deadline))
    }

    /// The live entry's deadline. A dead one is expired on the way.
    pub(crate) fn deadline<Q>(&self, key: &Q, now: &impl Now) -> Option<Deadline>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.read(key, now, Entry::deadline)
    }

    #[inline]
    fn read<Q, R>(&self, key: &Q, now: &impl Now, read: impl FnOnce(&Entry<V>) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location @ Location { hash, index } = self.place(key);
        self.purge_if_tag_removed(location, key, now);
        loop {
            let shard = self.shards.read(index);
            let entry = shard.find(hash, key)?;
            let deadline = entry.deadline();
            if !now.is_dead(deadline) {
                return Some(read(entry));
            }
            drop(shard);
            if self.confirm_expired(location, key, deadline, now) {
                return None;
            }
        }
    }

    /// Expires what a reader found dead, unless it lingers, or a writer was there first. False where it is to be looked
    /// for again, as there is one that lives: else another reader, who came before it died and now puts that off, would
    /// have it live again.
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
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let (table, _) = locked.parts();
        // Looked for again: between the two locks somebody may have written a new value, which lives.
        let found = window::find(table, location.hash, |k| key.equivalent(k));
        let Some((bucket, deadline)) = found.map(|(bucket, entry)| (bucket, entry.deadline()))
        else {
            return true;
        };
        if self.is_past_stale_window(deadline, now) {
            self.expire_found(locked, location.index, bucket, now);
            return true;
        }
        now.is_dead(deadline)
    }
}

impl<K, V> ShardReadGuard<'_, K, V, ShardState<K, V>> {
    /// How many entries there are.
    pub(super) fn resident(&self) -> usize {
        self.tables().map(Table::len).sum()
    }

    /// The tables that hold entries: one, or two while entries move from one to the other.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table<K, V>> {
        let old = self.state().old.as_ref();
        iter::once(&**self).chain(old.map(|old| &old.table))
    }

    #[inline]
    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not `window::find`: that wants the lock for writing, and tells a bucket that no reader needs.
        let mut found = self.get(hash, |(k, _)| key.equivalent(k));
        if found.is_none()
            && let Some(old) = &self.state().old
        {
            found = old.table.get(hash, |(k, _)| key.equivalent(k));
        }
        found.map(|(_, entry)| entry.get())
    }

    /// As [`find`](Self::find), with where it is.
    #[inline]
    fn find_at<Q>(&self, hash: u64, key: &Q) -> Option<Found<'_, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some((bucket, entry)) = window::find_shared(self, hash, |k| key.equivalent(k)) {
            return Some(Found { bucket, in_old_table: false, entry });
        }
        let old = self.state().old.as_ref()?;
        let (bucket, entry) = window::find_shared(&old.table, hash, |k| key.equivalent(k))?;
        Some(Found { bucket, in_old_table: true, entry })
    }

    /// Until when it may live, however often it is read; none where that is all there is to it.
    #[inline]
    fn hard_deadline(&self, found: &Found<'_, V>) -> Option<Deadline> {
        match (&self.state().old, found.in_old_table) {
            (Some(old), true) => old.side_tables.hard_deadline(found.bucket),
            _ => self.state().side_tables.hard_deadline(found.bucket),
        }
    }

    /// Whether it was removed by one of its tags before `deadline`.
    fn is_removed(&self, found: &Found<'_, V>, deadline: Deadline) -> bool {
        match (&self.state().old, found.in_old_table) {
            (Some(old), true) => old.side_tables.is_removed(found.bucket, deadline),
            _ => self.state().side_tables.is_removed(found.bucket, deadline),
        }
    }
}
