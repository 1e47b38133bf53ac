//! Writes of tagged values, and removal of entries by tag: unreadable at once, removed from memory by the next sweep.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use equivalent::Equivalent;

use super::{
    Location, Store,
    write::{WriteDecision, Written},
};
use crate::engine::{
    clock::{Deadline, Now, Tick},
    event::departure::Cause,
    shard::{
        Shard, remove::DropQueue, shard_state::ScannedEntry, table_cursor::TableCursor,
        tags::TagSet,
    },
};

/// Progress of a purge of entries whose tags were removed.
pub(crate) struct TagPurge {
    /// Generation of tag removals when the purge began.
    removals: usize,
    cursor: TableCursor,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns the tags of these names; `None` without names.
    pub(crate) fn tags(&self, names: Vec<Box<str>>) -> Option<TagSet> {
        self.tags.tags(names)
    }

    /// Writes `value` with tags of these names to `key`, and returns the live value that was replaced.
    pub(crate) fn set_tagged(
        &self,
        key: K,
        value: V,
        names: Vec<Box<str>>,
        now: &impl Now,
        deadline: Deadline,
    ) -> Option<V>
    where
        V: Clone,
    {
        let mut new = self.new_entry_with(key, value);
        // Before the shard is locked: the names of tags have a lock of their own.
        let mut tags = self.tags(names);
        loop {
            new.tags.clone_from(&tags);
            let all = || tags.iter().flat_map(|tags| tags.iter());
            let written =
                self.decide(&mut new, now, |_, _| match all().any(|tag| tag.is_removed()) {
                    true => WriteDecision::Leave,
                    false => WriteDecision::Put(deadline),
                });
            if written != Written::Unchanged {
                return new.value;
            }
            // A tag was removed after it had been looked up. With that tag, the value would be removed as well,
            // although it may replace one that was written after the removal.
            tags = self.tags(all().map(|tag| tag.name().into()).collect());
        }
    }

    /// Makes all entries with this tag unreadable, and wakes the sweeper to remove them.
    pub(crate) fn remove_tag(&self, name: &str, now: &impl Now) {
        self.tagged_loads.note_removal(name);
        if self.tags.remove(name, &self.context.tag_removals, || now.tick()) {
            self.context.journal.request_wake();
        }
    }

    /// Returns whether resident entries may have a removed tag.
    #[inline]
    pub(crate) fn has_tag_removals(&self) -> bool {
        self.context.tag_removals.is_pending()
    }

    /// Removes the entry of a key if one of its tags was removed. Called by every read before it looks at the entry. A
    /// read that overlaps the removal of the tag may still return the value: it changes nothing, so it came first.
    #[inline]
    pub(super) fn purge_if_tag_removed<Q>(&self, location: Location, key: &Q, now: &impl Now)
    where
        Q: Equivalent<K> + ?Sized,
    {
        if self.has_tag_removals() {
            self.purge_tag_removed(location, key, now);
        }
    }

    #[cold]
    fn purge_tag_removed<Q>(&self, location: Location, key: &Q, now: &impl Now)
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Checked under the read lock first: until the next sweep, every look-up takes this path.
        if self.is_tag_removed(location, key) {
            drop(self.lock_key(location, key, now));
        }
    }

    /// Removes the entry of a key from its locked shard if one of its tags was removed. Returns the shard, locked.
    #[cold]
    pub(super) fn remove_tag_removed<'a, Q>(
        &'a self,
        mut locked: Shard<'a, K, V, S>,
        location @ Location { hash, .. }: Location,
        key: &Q,
        now: &impl Now,
    ) -> Shard<'a, K, V, S>
    where
        Q: Equivalent<K> + ?Sized,
    {
        while let Some((bucket, _)) = locked.find_shared(hash, key)
            && locked.is_tag_removed(bucket)
        {
            locked.bump_write_version(hash, key);
            let mut drop_queue = DropQueue::new();
            locked.remove(bucket, Cause::Removed, now, &mut drop_queue);
            drop(locked);
            drop_queue.drop_all();
            locked = self.lock_entry(location, key);
        }
        locked
    }

    /// Returns a purge of all shards if any entry may have a removed tag.
    pub(crate) fn begin_tag_purge(&self) -> Option<TagPurge> {
        let removals = self.context.tag_removals.begin_purge()?;
        Some(TagPurge { removals, cursor: TableCursor::default() })
    }

    /// Removes up to `max_removed` of the entries with removed tags in the next windows. Returns their number, and
    /// whether there may be more.
    pub(crate) fn remove_tagged(
        &self,
        purge: &mut TagPurge,
        now: &impl Now,
        max_removed: usize,
    ) -> (usize, bool) {
        let (removed, has_more) = self.remove_next(&mut purge.cursor, now, max_removed, is_removed);
        if !has_more {
            self.context.tag_removals.end_purge(purge.removals);
        }
        (removed, has_more)
    }

    /// Continues the purge of the writers at the bound in the next windows, until `to_free` of weight is freed. Returns
    /// the number of examined entries, or `None` if there are no more entries to purge.
    pub(in crate::engine) fn continue_tag_purge(
        &self,
        mut to_free: u64,
        now: &impl Now,
    ) -> Option<usize> {
        // Taken out while it is in use: removing entries runs user code, which may panic.
        let mut purge = self.swap_tag_purge(None).or_else(|| self.begin_tag_purge())?;
        let (position, mut is_held_back, mut examined) = (purge.cursor, false, 0);
        let is_chosen = |scanned: &ScannedEntry<'_, K, V>, _| {
            examined += 1;
            let is_removed = scanned.is_tag_removed();
            is_held_back |= is_removed && to_free == 0;
            if !is_removed || to_free == 0 {
                return false;
            }
            to_free = to_free.saturating_sub(u64::from(scanned.weight()));
            true
        };
        let (_, mut has_more) = self.remove_next(&mut purge.cursor, now, usize::MAX, is_chosen);
        if is_held_back {
            (purge.cursor, has_more) = (position, true);
        }
        match has_more {
            true => _ = self.swap_tag_purge(Some(purge)),
            false => self.context.tag_removals.end_purge(purge.removals),
        }
        Some(examined)
    }

    /// Replaces the progress of the writers' purge, and returns the previous one.
    fn swap_tag_purge(&self, purge: Option<TagPurge>) -> Option<TagPurge> {
        let mut current = self.tag_purge.lock().expect("no user code runs under this lock");
        mem::replace(&mut *current, purge)
    }

    /// Removes the entries with removed tags from one shard.
    pub(crate) fn remove_tagged_of(&self, shard: usize, now: &impl Now) {
        let mut cursor = TableCursor::of(shard);
        while self.has_tag_removals() && cursor.shard == shard {
            self.remove_next(&mut cursor, now, usize::MAX, is_removed);
        }
    }
}

fn is_removed<K, V>(scanned: &ScannedEntry<'_, K, V>, _: Tick) -> bool {
    scanned.is_tag_removed()
}
