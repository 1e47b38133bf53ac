//! Tags: names that values share, by which all of them are removed at once; and whether a value had expired by then.
//!
//! A name stands for one [`Tag`] until the tag is removed; the next use of the name creates another. So removing a tag
//! writes one word, no matter how many values have it. A value is removed once one of its tags is; sweeps then free its
//! memory.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::{Arc, atomic::AtomicU64},
};

use foldhash::fast::FixedState;

use crate::engine::{
    clock::{Deadline, Tick},
    sync::{
        Mutex, MutexGuard,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Number of names up to which unused ones are not searched for.
const MIN_PRUNE_LEN: usize = 64;

/// The tags of a value.
pub(crate) type TagSet = Arc<[Arc<Tag>]>;

/// A tag, shared by the values that have it.
pub(crate) struct Tag {
    name: Box<str>,
    /// [`REMOVED`] and the tick of the removal; until then, the latest tick at which a call let a value with the tag
    /// expire. Relaxed: [`TagRemovals`] orders it for other threads.
    state: AtomicU64,
}

/// The tag is removed. No tick has this bit: they count nanoseconds.
const REMOVED: u64 = 1 << 63;

/// The tags of the values of one shard, by bucket.
#[derive(Default)]
pub(crate) struct TagSets(HashMap<usize, TagSet, FixedState>);

/// Generation of tag removals. Odd if resident entries may have a removed tag; a purge that has seen them all clears
/// the lowest bit. No odd value is used twice, so a purge does not clear a removal that happened after it began.
pub(crate) struct TagRemovals(AtomicUsize);

/// The tags that are not removed, by name. Lock order: never held while a shard is locked.
pub(crate) struct TagNames(Mutex<Names>);

struct Names {
    tags: HashSet<Named>,
    /// Number of names at which unused ones are searched for again.
    prune_at: usize,
    /// Maximum number of entries since unused names were last searched for because entries had departed.
    peak: usize,
}

/// A tag, hashed and compared by its name.
struct Named(Arc<Tag>);

impl TagRemovals {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Returns whether resident entries may have a removed tag. Relaxed: a look-up that happens after a tag was removed
    /// sees the increment, and the tags' own times decide.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.0.load(Relaxed) % 2 == 1
    }

    /// Records that resident entries may have a removed tag.
    pub(crate) fn note(&self) {
        // The next odd number, not just odd: a purge that is under way may have passed entries with this tag, so its
        // compare-exchange must fail. SeqCst: a purge that reads this number must see the tag's removal time, stored
        // before.
        let next = |removals: usize| Some(removals.wrapping_add(2) | 1);
        let _ = self.0.fetch_update(SeqCst, Relaxed, next);
    }

    /// Returns the generation for a purge that begins now; `None` if there is nothing to purge. SeqCst: pairs with
    /// [`note`](Self::note).
    pub(crate) fn begin_purge(&self) -> Option<usize> {
        let removals = self.0.load(SeqCst);
        (removals % 2 == 1).then_some(removals)
    }

    /// Notes that a purge has seen all shards. Has no effect if more tags were removed since it
    /// [began](Self::begin_purge); the next purge then visits all shards again.
    pub(crate) fn end_purge(&self, removals: usize) {
        let _ = self.0.compare_exchange(removals, removals & !1, SeqCst, Relaxed);
    }
}

impl TagNames {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Names { tags: HashSet::new(), prune_at: MIN_PRUNE_LEN, peak: 0 }))
    }

    /// Returns the tags of these names, creating those that do not exist; `None` without names.
    pub(crate) fn tags(&self, requested: Vec<Box<str>>) -> Option<TagSet> {
        if requested.is_empty() {
            return None;
        }
        let mut names = self.lock();
        let tag = |name: Box<str>| match names.tags.get(&*name) {
            Some(Named(tag)) => tag.clone(),
            None => {
                let tag = Arc::new(Tag { name, state: AtomicU64::new(0) });
                names.tags.insert(Named(tag.clone()));
                tag
            }
        };
        let tags = requested.into_iter().map(tag).collect();
        if names.tags.len() >= names.prune_at {
            names.prune();
        }
        Some(tags)
    }

    /// Frees unused names if most of the entries that there were have departed. `entries` counts the present ones.
    pub(crate) fn shrink_if_sparse(&self, entries: impl FnOnce() -> usize) {
        // So few names are not worth freeing.
        let are_few = |names: &Names| names.tags.capacity() <= 4 * MIN_PRUNE_LEN;
        if are_few(&self.lock()) {
            return;
        }
        // Counted without this lock, since counting locks every shard.
        let entries = entries();
        let mut names = self.lock();
        names.peak = names.peak.max(entries);
        if entries <= names.peak / 4 {
            names.peak = entries;
            names.prune();
            let len = names.tags.len();
            names.tags.shrink_to(2 * len);
        }
    }

    /// Removes the tag of this name, and notes it in `removals` if any value may have the tag. Returns whether it was
    /// noted.
    pub(crate) fn remove(
        &self,
        name: &str,
        removals: &TagRemovals,
        at: impl FnOnce() -> Tick,
    ) -> bool {
        let mut names = self.lock();
        let Some(Named(tag)) = names.tags.take(name) else { return false };
        tag.remove(at());
        let may_be_used = Arc::strong_count(&tag) > 1;
        if may_be_used {
            // Before the unlock: another call that no longer finds the name returns at once, and its caller must not
            // read the values any more either.
            removals.note();
        }
        may_be_used
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().expect("no user code runs under the lock of the tag names")
    }
}

impl Names {
    /// Frees the names that no value has. A caller that has just got a tag holds a reference to it.
    fn prune(&mut self) {
        self.tags.retain(|Named(tag)| Arc::strong_count(tag) > 1);
        self.prune_at = MIN_PRUNE_LEN.max(2 * self.tags.len());
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Tag {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed_at().is_some()
    }

    /// Returns the deadline of a value that a call lets expire at `deadline`: no later than the removal of the tag, and
    /// no removal that follows will be dated before it.
    ///
    /// The clock of the removal is read before the removal takes effect. Without this, a call in between would report
    /// that it let the value expire, and the value would depart as removed by the tag.
    pub(crate) fn note_expiry(&self, deadline: Deadline) -> Deadline {
        let later = |state| (state < REMOVED).then_some(deadline.order().max(state));
        match self.state.fetch_update(Relaxed, Relaxed, later) {
            Ok(_) => deadline,
            Err(state) => deadline.sooner(Tick::from_nanoseconds(state & !REMOVED).into()),
        }
    }

    fn remove(&self, at: Tick) {
        let removed = |expired_at| Some(REMOVED | at.nanoseconds().max(expired_at));
        let _ = self.state.fetch_update(Relaxed, Relaxed, removed);
    }

    fn removed_at(&self) -> Option<u64> {
        let state = self.state.load(Relaxed);
        (state >= REMOVED).then_some(state & !REMOVED)
    }
}

impl TagSets {
    pub(crate) fn get(&self, bucket: usize) -> Option<&TagSet> {
        self.0.get(&bucket)
    }

    pub(crate) fn put(&mut self, bucket: usize, tags: TagSet) {
        self.0.insert(bucket, tags);
    }

    #[inline]
    pub(crate) fn remove(&mut self, bucket: usize) -> Option<TagSet> {
        if self.0.is_empty() {
            return None;
        }
        let tags = self.0.remove(&bucket);
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len());
        }
        tags
    }

    /// Returns whether one of the tags of the value in `bucket` was removed before `deadline`. An expired value stays
    /// expired: a tag that is removed later does not change the cause.
    pub(crate) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        let Some(tags) = self.0.get(&bucket) else { return false };
        tags.iter().filter_map(|tag| tag.removed_at()).any(|at| at < deadline.order())
    }
}
