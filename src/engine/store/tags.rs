//! Tags: names that values share, by which all of them are removed at once.
//!
//! A name stands for a [`Tag`] until it is removed; the next who uses the name makes another. So to remove a tag is to
//! write one word, however many have it, and a value is removed where one of its tags is. Sweeps take it out.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use foldhash::fast::FixedState;

use crate::engine::{
    clock::{Deadline, Tick},
    sync::{Mutex, MutexGuard},
};

/// So many names are kept before it is looked for those that no value has.
const KEPT: usize = 64;

/// The tags of a value.
pub(crate) type TagSet = Arc<[Arc<Tag>]>;

pub(crate) struct Tag {
    name: Box<str>,
    /// When it was removed; zero as long as it is not.
    removed: AtomicU64,
}

/// The tags of the values of one shard, by their buckets.
#[derive(Default)]
pub(super) struct TagSets(HashMap<usize, TagSet, FixedState>);

/// The names of the tags that values may have.
pub(super) struct TagNames(Mutex<Names>);

struct Names {
    tags: HashSet<Named>,
    /// With so many it is looked again for those that no value has.
    full_at: usize,
    /// The most entries that there were since it was last looked because they had left.
    peak: usize,
}

/// A tag, to be found by its name.
struct Named(Arc<Tag>);

impl TagNames {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Names { tags: HashSet::new(), full_at: KEPT, peak: 0 }))
    }

    /// The tags of these names; none where there is no name.
    pub(super) fn tags(&self, names: Vec<Box<str>>) -> Option<TagSet> {
        if names.is_empty() {
            return None;
        }
        let mut all = self.lock();
        let tag = |name: Box<str>| match all.tags.get(&*name) {
            Some(Named(tag)) => tag.clone(),
            None => {
                let tag = Arc::new(Tag { name, removed: AtomicU64::new(0) });
                all.tags.insert(Named(tag.clone()));
                tag
            }
        };
        let tags = names.into_iter().map(tag).collect();
        if all.tags.len() >= all.full_at {
            all.forget_unused();
        }
        Some(tags)
    }

    /// Gives memory back, where most of the entries have left that there were; `entries` counts them.
    pub(super) fn fade(&self, entries: impl FnOnce() -> usize) {
        // Room for these is not worth giving back.
        let are_few = |names: &Names| names.tags.capacity() <= 4 * KEPT;
        if are_few(&self.lock()) {
            return;
        }
        // Counted out of the lock: that takes those of all shards.
        let entries = entries();
        let mut all = self.lock();
        all.peak = all.peak.max(entries);
        if entries <= all.peak / 4 {
            all.peak = entries;
            all.forget_unused();
            let len = all.tags.len();
            all.tags.shrink_to(2 * len);
        }
    }

    /// From now on who has the tag of this name is removed; tells whether anybody may be.
    pub(super) fn remove(&self, name: &str, at: impl FnOnce() -> Tick) -> bool {
        let mut all = self.lock();
        let Some(Named(tag)) = all.tags.take(name) else { return false };
        tag.removed.store(at().nanoseconds(), Relaxed);
        Arc::strong_count(&tag) > 1
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().expect("no user code runs under this lock")
    }
}

impl Names {
    /// Forgets the names that no value has. Who has just got one holds it.
    fn forget_unused(&mut self) {
        self.tags.retain(|Named(tag)| Arc::strong_count(tag) > 1);
        self.full_at = KEPT.max(2 * self.tags.len());
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
    #[cfg(feature = "serde")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl TagSets {
    #[cfg(feature = "serde")]
    pub(super) fn get(&self, bucket: usize) -> Option<&TagSet> {
        self.0.get(&bucket)
    }

    pub(super) fn put(&mut self, bucket: usize, tags: TagSet) {
        self.0.insert(bucket, tags);
    }

    #[inline]
    pub(super) fn remove(&mut self, bucket: usize) -> Option<TagSet> {
        if self.0.is_empty() {
            return None;
        }
        let tags = self.0.remove(&bucket);
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len());
        }
        tags
    }

    /// Whether the value in this bucket, which may live until `deadline`, was removed by one of its tags before that.
    pub(super) fn is_removed(&self, bucket: usize, deadline: Deadline) -> bool {
        let Some(tags) = self.0.get(&bucket) else { return false };
        tags.iter().any(|tag| {
            let removed = tag.removed.load(Relaxed);
            removed != 0 && removed < deadline.order()
        })
    }
}
