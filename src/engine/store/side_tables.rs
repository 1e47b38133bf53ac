//! What a shard keeps of its entries beside them, by the bucket that each is in. A cache that asked for none of it
//! keeps nothing.

use super::{
    eviction_state::{EvictionState, OldEvictionState},
    tags::{TagSet, TagSets},
};
use crate::engine::clock::Deadline;

#[derive(Default)]
pub(super) struct SideTables {
    /// Where entries make room for each other.
    pub(super) eviction: Option<Box<EvictionState>>,
    extra: Option<Box<Extra>>,
}

/// Neither has a place in the entry, where all would pay for it.
#[derive(Default)]
struct Extra {
    /// Where entries die idle: what is in the entry is then the sooner of that and its own deadline.
    hard_deadlines: Option<HardDeadlines>,
    tags: TagSets,
}

/// Until when entries may live however often they are read.
struct HardDeadlines {
    buckets: usize,
    /// Empty as long as none has one: then a hit has one line of memory less to wait for.
    deadlines: Vec<Deadline>,
}

/// What was kept of the entries of a table that they leave.
pub(super) struct OldSideTables {
    eviction: Option<OldEvictionState>,
    extra: Option<Box<Extra>>,
}

impl SideTables {
    /// From now on with the deadlines that entries have beside the one of who is idle.
    pub(super) fn track_hard_deadlines(&mut self, buckets: usize) {
        self.extra.get_or_insert_default().hard_deadlines = Some(HardDeadlines::new(buckets));
    }

    /// Whether entries may change their places only by [`relocate`](Self::relocate).
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.eviction.is_some() || self.extra.is_some()
    }

    /// The entry in this bucket has left. Returns what it weighed.
    #[inline]
    pub(super) fn departed(&mut self, bucket: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.eviction.as_mut().map_or(1, |eviction| eviction.departed(bucket))
    }

    /// The entry in this bucket has left for others. Returns what it weighed.
    pub(super) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.eviction.as_mut().map_or(1, |eviction| eviction.evicted(bucket, hash, len))
    }

    /// What the entry in this bucket weighs.
    pub(super) fn weight(&self, bucket: usize) -> u32 {
        self.eviction.as_ref().map_or(1, |eviction| eviction.weight_of(bucket))
    }

    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        if let Some(eviction) = &self.eviction {
            eviction.touch(bucket);
        }
    }

    /// Until when what is in this bucket may live, however often it is read; none where that is all there is to it.
    #[inline]
    pub(super) fn hard_deadline(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.hard_deadlines.as_ref()?.get(bucket))
    }

    /// A value was written to this bucket: it may live until then, and has these tags.
    #[inline]
    pub(super) fn write(&mut self, bucket: usize, hard_deadline: Deadline, tags: Option<TagSet>) {
        if let Some(tags) = tags {
            self.extra.get_or_insert_default().tags.put(bucket, tags);
        } else if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.set_hard_deadline(bucket, hard_deadline);
    }

    #[inline]
    pub(super) fn set_hard_deadline(&mut self, bucket: usize, hard_deadline: Deadline) {
        if let Some(hard_deadlines) =
            self.extra.as_mut().and_then(|extra| extra.hard_deadlines.as_mut())
        {
            hard_deadlines.set(bucket, hard_deadline);
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
    pub(super) fn eviction_and_tags(&mut self) -> Option<(&mut EvictionState, Option<&TagSets>)> {
        let Self { eviction, extra } = self;
        Some((eviction.as_mut()?, extra.as_ref().map(|extra| &extra.tags)))
    }

    /// All `len` have left. Returns what they weighed.
    pub(super) fn cleared(&mut self, len: usize) -> u64 {
        self.eviction.as_mut().map_or(len as u64, |eviction| eviction.cleared(len))
    }

    /// Another table takes the place of the present one.
    pub(super) fn resize(&mut self, buckets: usize) -> OldSideTables {
        let eviction = self.eviction.as_mut().map(|eviction| eviction.resize(buckets));
        let extra = self.extra.take();
        if let Some(before) = &extra {
            let hard_deadlines =
                before.hard_deadlines.as_ref().map(|_| HardDeadlines::new(buckets));
            self.extra = Some(Box::new(Extra { hard_deadlines, tags: TagSets::default() }));
        }
        OldSideTables { eviction, extra }
    }

    /// An entry has come from a bucket of a table that it left.
    pub(super) fn relocate(&mut self, old: &mut OldSideTables, from: usize, to: usize) {
        if let (Some(eviction), Some(old)) = (&mut self.eviction, &old.eviction) {
            eviction.relocate(old, from, to);
        }
        let Some(before) = &mut old.extra else { return };
        if let Some(hard_deadline) =
            before.hard_deadlines.as_ref().map(|hard_deadline| hard_deadline.get(from))
        {
            self.set_hard_deadline(to, hard_deadline);
        }
        if let Some(tags) = before.tags.remove(from) {
            self.extra.get_or_insert_default().tags.put(to, tags);
        }
    }
}

impl OldSideTables {
    /// As [`SideTables::hard_deadline`].
    pub(super) fn hard_deadline(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.hard_deadlines.as_ref()?.get(bucket))
    }

    /// As [`SideTables::is_removed`].
    pub(super) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.tags.is_removed(bucket, deadline))
    }
}

impl HardDeadlines {
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
