//! What a shard keeps of its entries beside them, by the bucket that each is in. A cache that asked for none of it
//! keeps nothing.

use super::{
    eviction_state::{Marks, Room},
    tags::{TagSet, TagSets},
};
use crate::engine::clock::Deadline;

#[derive(Default)]
pub(super) struct Kept {
    /// Where entries make room for each other.
    pub(super) room: Option<Box<Room>>,
    extra: Option<Box<Extra>>,
}

/// Neither has a place in the entry, where all would pay for it.
#[derive(Default)]
struct Extra {
    /// Where entries die idle: what is in the entry is then the sooner of that and its own deadline.
    own: Option<OwnDeadlines>,
    tags: TagSets,
}

/// Until when entries may live however often they are read.
struct OwnDeadlines {
    buckets: usize,
    /// Empty as long as none has one: then a hit has one line of memory less to wait for.
    deadlines: Vec<Deadline>,
}

/// What was kept of the entries of a table that they leave.
pub(super) struct KeptMarks {
    room: Option<Marks>,
    extra: Option<Box<Extra>>,
}

impl Kept {
    /// From now on with the deadlines that entries have beside the one of who is idle.
    pub(super) fn dies_idle(&mut self, buckets: usize) {
        self.extra.get_or_insert_default().own = Some(OwnDeadlines::new(buckets));
    }

    /// Whether entries may change their places only by [`relocate`](Self::relocate).
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.room.is_some() || self.extra.is_some()
    }

    /// The entry in this bucket has left. Returns what it weighed.
    #[inline]
    pub(super) fn left(&mut self, bucket: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.room.as_mut().map_or(1, |room| room.left(bucket))
    }

    /// The entry in this bucket has left for others. Returns what it weighed.
    pub(super) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.room.as_mut().map_or(1, |room| room.evicted(bucket, hash, len))
    }

    /// What the entry in this bucket weighs.
    pub(super) fn weight(&self, bucket: usize) -> u32 {
        self.room.as_ref().map_or(1, |room| room.weight_of(bucket))
    }

    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        if let Some(room) = &self.room {
            room.touch(bucket);
        }
    }

    /// Until when what is in this bucket may live, however often it is read; none where that is all there is to it.
    #[inline]
    pub(super) fn own(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.own.as_ref()?.get(bucket))
    }

    /// A value was written to this bucket: it may live until then, and has these tags.
    #[inline]
    pub(super) fn written(&mut self, bucket: usize, own: Deadline, tags: Option<TagSet>) {
        if let Some(tags) = tags {
            self.extra.get_or_insert_default().tags.put(bucket, tags);
        } else if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.set_own(bucket, own);
    }

    #[inline]
    pub(super) fn set_own(&mut self, bucket: usize, own: Deadline) {
        if let Some(owns) = self.extra.as_mut().and_then(|extra| extra.own.as_mut()) {
            owns.set(bucket, own);
        }
    }

    /// Whether what is in this bucket, and may live until `deadline`, was removed by one of its tags before that.
    pub(super) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.tags.is_removed(bucket, deadline))
    }

    /// The tags of what is in this bucket.
    #[cfg(feature = "serde")]
    pub(super) fn tags(&self, bucket: usize) -> Option<TagSet> {
        self.extra.as_ref()?.tags.get(bucket).cloned()
    }

    /// Where entries make room for each other, and their tags beside it.
    pub(super) fn room(&mut self) -> Option<(&mut Room, Option<&TagSets>)> {
        let Self { room, extra } = self;
        Some((room.as_mut()?, extra.as_ref().map(|extra| &extra.tags)))
    }

    /// All `len` have left. Returns what they weighed.
    pub(super) fn cleared(&mut self, len: usize) -> u64 {
        self.room.as_mut().map_or(len as u64, |room| room.cleared(len))
    }

    /// Another table takes the place of the present one.
    pub(super) fn resize(&mut self, buckets: usize) -> KeptMarks {
        let room = self.room.as_mut().map(|room| room.resize(buckets));
        let extra = self.extra.take();
        if let Some(before) = &extra {
            let own = before.own.as_ref().map(|_| OwnDeadlines::new(buckets));
            self.extra = Some(Box::new(Extra { own, tags: TagSets::default() }));
        }
        KeptMarks { room, extra }
    }

    /// An entry has come from a bucket of a table that it left.
    pub(super) fn relocate(&mut self, marks: &mut KeptMarks, from: usize, to: usize) {
        if let (Some(room), Some(marks)) = (&mut self.room, &marks.room) {
            room.relocate(marks, from, to);
        }
        let Some(before) = &mut marks.extra else { return };
        if let Some(own) = before.own.as_ref().map(|own| own.get(from)) {
            self.set_own(to, own);
        }
        if let Some(tags) = before.tags.remove(from) {
            self.extra.get_or_insert_default().tags.put(to, tags);
        }
    }
}

impl KeptMarks {
    /// As [`Kept::own`].
    pub(super) fn own(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.own.as_ref()?.get(bucket))
    }

    /// As [`Kept::is_removed`].
    pub(super) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.tags.is_removed(bucket, deadline))
    }
}

impl OwnDeadlines {
    fn new(buckets: usize) -> Self {
        Self { buckets, deadlines: Vec::new() }
    }

    #[inline]
    fn get(&self, bucket: usize) -> Deadline {
        self.deadlines.get(bucket).copied().unwrap_or(Deadline::PERSISTENT)
    }

    #[inline]
    fn set(&mut self, bucket: usize, deadline: Deadline) {
        if self.deadlines.is_empty() {
            if deadline == Deadline::PERSISTENT {
                return;
            }
            self.deadlines = vec![Deadline::PERSISTENT; self.buckets];
        }
        self.deadlines[bucket] = deadline;
    }
}
