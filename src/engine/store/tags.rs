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
const MIN_PRUNE_LEN: usize = 64;

/// The tags of a value.
pub(crate) type TagSet = Arc<[Arc<Tag>]>;

pub(crate) struct Tag {
    name: Box<str>,
    /// When it was removed; zero as long as it is not.
    removed_at: AtomicU64,
}

/// The tags of the values of one shard, by their buckets.
#[derive(Default)]
pub(super) struct TagSets(HashMap<usize, TagSet, FixedState>);

/// The names of the tags that values may have.
pub(super) struct TagNames(Mutex<Names>);

struct Names {
    tags: HashSet<Named>,
    /// With so many it is looked again for those that no value has.
    prune_at: usize,
    /// The most entries that there were since it was last looked because they had left.
    peak: usize,
}

/// A tag, to be found by its name.
struct Named(Arc<Tag>);

impl TagNames {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Names { tags: HashSet::new(), prune_at: MIN_PRUNE_LEN, peak: 0 }))
    }

    /// The tags of these names; none where there is no name.
    pub(super) fn tags(&self, requested: Vec<Box<str>>) -> Option<TagSet> {
        if requested.is_empty() {
            return None;
        }
        let mut names = self.lock();
        let tag = |name: Box<str>| match names.tags.get(&*name) {
            Some(Named(tag)) => tag.clone(),
            None => {
                let tag = Arc::new(Tag { name, removed_at: AtomicU64::new(0) });
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

    /// Gives memory back, where most of the entries have left that there were; `entries` counts them.
    pub(super) fn shrink_if_sparse(&self, entries: impl FnOnce() -> usize) {
        // Room for these is not worth giving back.
        let are_few = |names: &Names| names.tags.capacity() <= 4 * MIN_PRUNE_LEN;
        if are_few(&self.lock()) {
            return;
        }
        // Counted out of the lock: that takes those of all shards.
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

    /// From now on who has the tag of this name is removed; tells whether anybody may be.
    pub(super) fn remove(&self, name: &str, at: impl FnOnce() -> Tick) -> bool {
        let mut names = self.lock();
        let Some(Named(tag)) = names.tags.take(name) else { return false };
        tag.removed_at.store(at().nanoseconds(), Relaxed);
        Arc::strong_count(&tag) > 1
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().expect("no user code runs under this lock")
    }
}

impl Names {
    /// Forgets the names that no value has. Who has just got one holds it.
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
            let removed_at = tag.removed_at.load(Relaxed);
            removed_at != 0 && removed_at < deadline.order()
        })
    }
}
