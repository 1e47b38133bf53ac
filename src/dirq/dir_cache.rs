//! Open directories of a queue that are kept between calls, so that a call need not open them again.
//!
//! A cached directory is valid if the queue's own directory has the same device, inode and change time: then nothing in
//! it was created, removed or renamed. One `stat` of the queue's directory replaces opening each of them. Change times
//! of network file systems are not reliable, so those have no cache.

use std::{
    mem,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    dir_version::DirVersion,
    fs::{Dir, stat},
    mutex::lock,
};

/// The most recently opened directories of a queue, valid for one generation of the queue's directory.
#[derive(Debug, Default)]
pub(super) struct DirCache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The version that was seen last.
    version: DirVersion,
    /// Incremented with each new version; zero before the first.
    generation: u64,
    /// True if any further change must alter the version, because the last one is older than a clock tick.
    is_settled: bool,
    /// Oldest first.
    open: Vec<CachedDir>,
}

#[derive(Debug)]
struct CachedDir {
    name: String,
    dir: Arc<Dir>,
    _slot: OpenSlot,
}

impl DirCache {
    /// Enough for the directories of a normal queue's elements that are read and written, for `temporary` and
    /// `obsolete`, and for both directories of records.
    const MAX_OPEN: usize = 6;

    /// Checks the queue's directory, and clears the cache if it has changed. Returns the generation, which differs from
    /// the last one after a change, or `None` if changes cannot be detected.
    pub(super) fn validate(&self, path: &Path) -> Option<u64> {
        // Without metadata nothing is cached, and opening a directory reports the error.
        let (version, is_settled) = DirVersion::read(|| stat(path)).ok()?;
        let mut state = lock(&self.0);
        let next = State { version, generation: state.generation + 1, ..State::default() };
        let old = (state.version != version).then(|| mem::replace(&mut *state, next));
        state.is_settled |= is_settled;
        let generation = state.is_settled.then_some(state.generation);
        // The lock is released first: closing directories is a system call.
        drop((state, old));
        generation
    }

    /// Returns a directory that was opened in this generation.
    pub(super) fn get(&self, name: &str, generation: u64) -> Option<Arc<Dir>> {
        let state = lock(&self.0);
        let open = state.open.iter().find(|open| open.name == name);
        // Another call may have detected a change since.
        open.filter(|_| state.generation == generation).map(|open| open.dir.clone())
    }

    /// Caches a directory that was opened in this generation, if a slot is free.
    pub(super) fn insert(&self, name: &str, dir: &Arc<Dir>, generation: u64) {
        let Some(slot) = OpenSlot::take() else { return };
        let open = CachedDir { name: name.to_owned(), dir: dir.clone(), _slot: slot };
        let mut state = lock(&self.0);
        if state.generation != generation {
            return;
        }
        let old = (state.open.len() == Self::MAX_OPEN).then(|| state.open.remove(0));
        // Two concurrent calls may cache the same directory twice. That only takes a slot, until it is the oldest.
        state.open.push(open);
        // The lock is released first: closing a directory is a system call.
        drop((state, old));
    }
}

/// The right to keep one directory open. The process has a limited number of slots: with a thousand queues it must not
/// keep thousands of directories open.
#[derive(Debug)]
struct OpenSlot(());

impl OpenSlot {
    /// The limit of the public docs: small compared with the usual 1,024 files of a process.
    const MAX: usize = 64;

    fn take() -> Option<Self> {
        // `Relaxed`: only the number matters, it orders no other memory.
        let taken = SLOTS_TAKEN.fetch_add(1, Relaxed);
        // Created in any case: its drop decrements the count if it was one too many.
        let slot = Self(());
        (taken < Self::MAX).then_some(slot)
    }
}

impl Drop for OpenSlot {
    fn drop(&mut self) {
        SLOTS_TAKEN.fetch_sub(1, Relaxed);
    }
}

static SLOTS_TAKEN: AtomicUsize = AtomicUsize::new(0);
