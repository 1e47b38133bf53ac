//! Removing what has a tag: at once for all who ask, and out of memory by the next sweep.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{
    Location, Store,
    counters::bump,
    entry::{Cause, Entry},
    side_tables::SideTables,
    table_cursor::TableCursor,
    tags::TagSet,
    window,
};
use crate::engine::{
    clock::{Now, Tick},
    sync::atomic::Ordering::{Relaxed, SeqCst},
};

/// How far it has been looked for what was removed by its tags.
pub(crate) struct TagPurge {
    /// What the store had of this when it began.
    removals: usize,
    cursor: TableCursor,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    pub(crate) fn tags(&self, names: Vec<Box<str>>) -> Option<TagSet> {
        self.tags.tags(names)
    }

    /// From now on nobody finds what has this tag. The sweeper is woken to take it out.
    pub(crate) fn remove_tag(&self, name: &str, now: &impl Now) {
        if self.tags.remove(name, || now.tick()) {
            self.note_tag_removal();
            self.journal.request_wake();
        }
    }

    /// Whether tags were removed that values may still have.
    #[inline]
    pub(crate) fn has_tag_removals(&self) -> bool {
        self.tag_removals.load(Relaxed) % 2 == 1
    }

    pub(super) fn note_tag_removal(&self) {
        // Another odd number: a pass under way has passed by what has this tag, and must not end the search.
        let next = |removals: usize| Some(removals.wrapping_add(2) | 1);
        let _ = self.tag_removals.fetch_update(SeqCst, Relaxed, next);
    }

    /// Lets the value of a key leave, if it was removed by one of its tags: before anybody looks at it.
    #[inline]
    pub(super) fn purge_if_tag_removed<Q>(&self, location: Location, key: &Q, now: &impl Now)
    where
        Q: Equivalent<K> + ?Sized,
    {
        if self.has_tag_removals() {
            self.remove_tag_removed(location, key, now);
        }
    }

    #[cold]
    fn remove_tag_removed<Q>(
        &self,
        location @ Location { hash, index }: Location,
        key: &Q,
        now: &impl Now,
    ) where
        Q: Equivalent<K> + ?Sized,
    {
        // By one more who reads: until the next sweep all who look anything up come here.
        if !self.is_tag_removed(location, key) {
            return;
        }
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let (table, state) = locked.parts();
        let found = window::find(table, hash, |k| key.equivalent(k));
        let removed =
            found.filter(|(bucket, entry)| state.side_tables.is_removed(*bucket, entry.deadline()));
        let Some((bucket, _)) = removed else { return };
        state.bump_write_version(hash, key);
        let (key, entry) = self.take_out(&mut locked, bucket);
        let mut departure = entry.depart(key, Cause::Removed, now.tick());
        self.attach_waiters(locked.parts().1, &mut departure);
        let unrecorded = self.journal.record(index, departure);
        bump(&self.meta[index].departures.removed, 1);
        drop(locked);
        drop(unrecorded);
    }

    /// A look at all shards for what was removed by its tags, where there may be any.
    pub(crate) fn tag_pass(&self) -> Option<TagPurge> {
        let removals = self.tag_removals.load(SeqCst);
        (removals % 2 == 1).then(|| TagPurge { removals, cursor: TableCursor::default() })
    }

    /// Takes out what was removed by its tags in the next windows; tells whether there are more to look at.
    pub(crate) fn remove_tagged(
        &self,
        TagPurge { removals, cursor }: &mut TagPurge,
        now: &impl Now,
    ) -> bool {
        let (_, has_more) = self.remove_next(cursor, now, is_removed);
        if !has_more {
            // Where more were removed meanwhile, the next pass looks for all.
            let _ = self.tag_removals.compare_exchange(*removals, *removals & !1, SeqCst, Relaxed);
        }
        has_more
    }

    /// Takes out what was removed by its tags in a shard.
    pub(crate) fn remove_tagged_of(&self, shard: usize, now: &impl Now) {
        let mut cursor = TableCursor::of(shard);
        while self.has_tag_removals() && cursor.shard == shard {
            self.remove_next(&mut cursor, now, is_removed);
        }
    }
}

fn is_removed<K, V>(
    side_tables: &SideTables,
    bucket: usize,
    _: &K,
    entry: &Entry<V>,
    _: Tick,
) -> bool {
    side_tables.is_removed(bucket, entry.deadline())
}
