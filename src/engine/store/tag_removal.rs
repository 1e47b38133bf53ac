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
    clock::{Deadline, Now},
    event::departure::Cause,
    shard::{
        Shard, remove::DropQueue, shard_state::ScannedEntry, table_cursor::TableCursor,
        tags::TagSet,
    },
};

/// Progress of the writers' purge of entries whose tags were removed.
pub(crate) struct TagPurge {
    /// Generation of tag removals when the purge began.
    removals: usize,
    cursor: TableCursor,
}

/// Progress of a sweep's purge of entries whose tags were removed. One pass removes the values that were live by then,
/// and another one those in their stale windows: they depart with different causes, and a subscriber of one cause
/// without free capacity must not hold the other one back.
pub(crate) struct TagSweep {
    removals: usize,
    /// `None` once the pass is done, and so is the other one.
    live: Option<TableCursor>,
    stale: Option<TableCursor>,
}

/// Rest of a pass of a purge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgeRest {
    None,
    Some,
    /// An entry was left in place because the maximum number was removed.
    HeldBack,
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

    /// Returns a purge of all shards if any entry may have a removed tag: the one that is under way, unless that has
    /// only stale values left and does not know of all removed tags.
    pub(crate) fn next_tag_sweep(&self, purge: Option<TagSweep>) -> Option<TagSweep> {
        if purge.as_ref().is_some_and(|purge| purge.live.is_some()) {
            return purge;
        }
        let removals = self.context.tag_removals.begin_purge()?;
        purge.filter(|purge| purge.removals == removals).or_else(|| {
            let cursor = TableCursor::default();
            Some(TagSweep {
                removals,
                live: Some(cursor),
                stale: self.keeps_stale().then_some(cursor),
            })
        })
    }

    /// Removes up to `max_removed` of the entries with removed tags in the next windows, of those that depart with
    /// `cause`: `Removed` or `Expired`. Returns their number, and the rest of the pass.
    pub(crate) fn remove_tagged(
        &self,
        purge: &mut TagSweep,
        now: &impl Now,
        cause: Cause,
        max_removed: usize,
    ) -> (usize, PurgeRest) {
        let is_live = cause == Cause::Removed;
        let pass = if is_live { &mut purge.live } else { &mut purge.stale };
        let Some(cursor) = pass else { return (0, PurgeRest::None) };
        let mut chosen = 0;
        let is_chosen = |scanned: &ScannedEntry<'_, K, V>, _| {
            let is_tagged = if is_live {
                scanned.is_tag_removed()
            } else {
                scanned.has_removed_tag() && !scanned.is_tag_removed()
            };
            chosen += usize::from(is_tagged);
            is_tagged
        };
        let (removed, has_more) = self.remove_next(cursor, now, max_removed, cause, is_chosen);
        if has_more {
            let is_held_back = chosen > removed;
            return (removed, if is_held_back { PurgeRest::HeldBack } else { PurgeRest::Some });
        }
        *pass = None;
        if purge.is_done() {
            self.context.tag_removals.end_purge(purge.removals);
        }
        (removed, PurgeRest::None)
    }

    /// Continues the purge of the writers at the bound in the next windows, until `to_free` of weight is freed. Returns
    /// the number of examined entries, or `None` if there are no more entries to purge.
    pub(in crate::engine) fn continue_tag_purge(
        &self,
        mut to_free: u64,
        now: &impl Now,
    ) -> Option<usize> {
        // Taken out while it is in use: removing entries runs user code, which may panic.
        let mut purge = self.swap_tag_purge(None).or_else(|| {
            let removals = self.context.tag_removals.begin_purge()?;
            Some(TagPurge { removals, cursor: TableCursor::default() })
        })?;
        let (position, mut is_held_back, mut examined) = (purge.cursor, false, 0);
        let is_chosen = |scanned: &ScannedEntry<'_, K, V>, _| {
            examined += 1;
            let is_removed = self.is_ended_by_tag(scanned);
            is_held_back |= is_removed && to_free == 0;
            if !is_removed || to_free == 0 {
                return false;
            }
            to_free = to_free.saturating_sub(u64::from(scanned.weight()));
            true
        };
        let (cursor, cause) = (&mut purge.cursor, Cause::Expired);
        let (_, mut has_more) = self.remove_next(cursor, now, usize::MAX, cause, is_chosen);
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
            let is_chosen = |scanned: &ScannedEntry<'_, K, V>, _| self.is_ended_by_tag(scanned);
            self.remove_next(&mut cursor, now, usize::MAX, Cause::Expired, is_chosen);
        }
    }

    /// Returns whether the removal of a tag has ended the entry, which was live by then, or in its stale window. In the
    /// latter case it departs as expired, as it does if it is removed by its key.
    fn is_ended_by_tag(&self, scanned: &ScannedEntry<'_, K, V>) -> bool {
        match self.keeps_stale() {
            true => scanned.has_removed_tag(),
            // Expired entries are due in any case.
            false => scanned.is_tag_removed(),
        }
    }
}

impl TagSweep {
    /// Returns true once both passes are done.
    pub(crate) fn is_done(&self) -> bool {
        self.live.is_none() && self.stale.is_none()
    }
}
