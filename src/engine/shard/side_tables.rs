//! Side tables of a shard: optional per-bucket data such as hard deadlines, tags, weights and access words. A cache
//! that needs none of them stores none.

use super::tags::{TagSet, TagSets};
use crate::engine::{
    clock::Deadline,
    victims::{EvictionState, OldEvictionState},
};

/// The side tables of the current table.
#[derive(Default)]
pub(crate) struct SideTables {
    /// Present if the store evicts.
    pub(crate) eviction: Option<Box<EvictionState>>,
    extra: Option<Box<Extra>>,
}

/// Data that few caches need, and that is therefore not in the entry, where all would pay for it.
#[derive(Default)]
struct Extra {
    /// Present if entries have idle deadlines: an entry then stores the sooner of its idle and its hard deadline.
    hard_deadlines: Option<HardDeadlines>,
    tags: TagSets,
}

/// Hard deadlines by bucket. Reads do not extend them.
struct HardDeadlines {
    buckets: usize,
    /// Empty as long as no entry has one. A hit then loads one cache line less.
    deadlines: Vec<Deadline>,
}

/// The side tables of the old table, while its entries are being moved.
pub(crate) struct OldSideTables {
    eviction: Option<OldEvictionState>,
    extra: Option<Box<Extra>>,
}

impl SideTables {
    /// Stores hard deadlines from now on, because entries get idle deadlines too.
    pub(crate) fn track_hard_deadlines(&mut self, buckets: usize) {
        self.extra.get_or_insert_default().hard_deadlines = Some(HardDeadlines::new(buckets));
    }

    /// Returns whether entries may change buckets only together with a call of [`relocate`](Self::relocate).
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.eviction.is_some() || self.extra.is_some()
    }

    /// Returns whether hard deadlines or tags are stored.
    #[inline]
    pub(crate) fn has_extra(&self) -> bool {
        self.extra.is_some()
    }

    /// Forgets the entry of `bucket`, which departed without being evicted. Returns its weight.
    #[inline]
    pub(crate) fn departed(&mut self, bucket: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.eviction.as_mut().map_or(1, |eviction| eviction.departed(bucket))
    }

    /// Forgets the entry of `bucket`, which was evicted. Returns its weight.
    pub(crate) fn evicted(&mut self, bucket: usize, hash: u64, len: usize) -> u64 {
        if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.eviction.as_mut().map_or(1, |eviction| eviction.evicted(bucket, hash, len))
    }

    /// Returns the weight of the entry in `bucket`.
    pub(crate) fn weight(&self, bucket: usize) -> u32 {
        self.eviction.as_ref().map_or(1, |eviction| eviction.weight_of(bucket))
    }

    /// Records a hit for the eviction policy. Needs only the read lock.
    #[inline]
    pub(crate) fn touch(&self, bucket: usize) {
        if let Some(eviction) = &self.eviction {
            eviction.touch(bucket);
        }
    }

    /// Returns the hard deadline of the entry in `bucket`; `None` if the deadline in the entry is the hard one.
    #[inline]
    pub(crate) fn hard_deadline(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.hard_deadlines.as_ref()?.get(bucket))
    }

    /// Sets the hard deadline and the tags of a value that was written to `bucket`.
    #[inline]
    pub(crate) fn write(&mut self, bucket: usize, hard_deadline: Deadline, tags: Option<TagSet>) {
        if let Some(tags) = tags {
            self.extra.get_or_insert_default().tags.put(bucket, tags);
        } else if let Some(extra) = &mut self.extra {
            extra.tags.remove(bucket);
        }
        self.set_hard_deadline(bucket, hard_deadline);
    }

    /// Sets the hard deadline of the entry in `bucket`, if hard deadlines are stored.
    #[inline]
    pub(crate) fn set_hard_deadline(&mut self, bucket: usize, hard_deadline: Deadline) {
        if let Some(hard_deadlines) =
            self.extra.as_mut().and_then(|extra| extra.hard_deadlines.as_mut())
        {
            hard_deadlines.set(bucket, hard_deadline);
        }
    }

    /// Returns whether one of the tags of the entry in `bucket` was removed before `deadline`.
    #[inline]
    pub(crate) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.tags.is_removed(bucket, deadline))
    }

    /// Returns the tags of the entry in `bucket`.
    #[inline]
    pub(crate) fn tags(&self, bucket: usize) -> Option<TagSet> {
        self.extra.as_ref()?.tags.get(bucket).cloned()
    }

    /// Returns the eviction state and, for the look-up of removed tags, the tags.
    pub(crate) fn eviction_and_tags(&mut self) -> Option<(&mut EvictionState, Option<&TagSets>)> {
        let Self { eviction, extra } = self;
        Some((eviction.as_mut()?, extra.as_ref().map(|extra| &extra.tags)))
    }

    /// Forgets all `len` entries. Returns their weight.
    pub(crate) fn cleared(&mut self, len: usize) -> u64 {
        self.eviction.as_mut().map_or(len as u64, |eviction| eviction.cleared(len))
    }

    /// Adapts to a new table of `buckets` buckets. Returns the side tables of the old one.
    pub(crate) fn resize(&mut self, buckets: usize) -> OldSideTables {
        let eviction = self.eviction.as_mut().map(|eviction| eviction.resize(buckets));
        let extra = self.extra.take();
        if let Some(before) = &extra {
            let hard_deadlines =
                before.hard_deadlines.as_ref().map(|_| HardDeadlines::new(buckets));
            self.extra = Some(Box::new(Extra { hard_deadlines, tags: TagSets::default() }));
        }
        OldSideTables { eviction, extra }
    }

    /// Moves the data of an entry from a bucket of the old table to one of the current table.
    pub(crate) fn relocate(&mut self, old: &mut OldSideTables, from: usize, to: usize) {
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
    pub(crate) fn hard_deadline(&self, bucket: usize) -> Option<Deadline> {
        Some(self.extra.as_ref()?.hard_deadlines.as_ref()?.get(bucket))
    }

    /// As [`SideTables::is_removed`].
    pub(crate) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
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
