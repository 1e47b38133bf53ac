//! The directories of a queue that stay open between calls, so that a call need not open them again.
//!
//! What the kernel says of the queue's own directory tells whether they still are what their paths lead to: they
//! are, if it is the same directory, and nothing in it was made, removed or renamed since, as the time of its
//! last change says. So one look at it replaces the opening of each of them. On a network, such times are not to
//! be trusted.

use std::{
    mem,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::fs::{Dir, Stat, stat};

/// The directories of a queue that were opened last, each right for one generation of the queue's directory.
#[derive(Debug, Default)]
pub(super) struct DirCache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// As it was seen last.
    version: Version,
    /// Another one for each version that was seen; zero before the first.
    generation: u64,
    /// Whether the next change of the queue's directory must show in its time.
    is_settled: bool,
    /// The oldest first.
    open: Vec<CachedDir>,
}

/// Device, inode, and seconds and nanoseconds of the last change.
type Version = (u64, u64, i64, i64);

#[derive(Debug)]
struct CachedDir {
    name: String,
    dir: Arc<Dir>,
    _slot: OpenSlot,
}

impl DirCache {
    /// Those for elements that come and go, and those for their way in and out.
    const MAX_OPEN: usize = 4;
    /// Changes that follow each other more closely than the kernel's clock ticks may have the same time.
    const TICK: Duration = Duration::from_millis(100);

    /// Looks at the queue's directory, and forgets what was open where it has changed. A generation other than the
    /// last means that it has, and none that this can't be told.
    pub(super) fn validate(&self, path: &Path) -> Option<u64> {
        // Before the look, so that a change after it is not older than this.
        let now = SystemTime::now();
        let version = version_of(&stat(path).ok()?);
        let mut state = self.state();
        let next = State { version, generation: state.generation + 1, ..State::default() };
        let old = (state.version != version).then(|| mem::replace(&mut *state, next));
        if !state.is_settled {
            state.is_settled = change_time_of(&version)
                .and_then(|changed| now.duration_since(changed).ok())
                .is_some_and(|age| age > Self::TICK);
        }
        let generation = state.is_settled.then_some(state.generation);
        // In this order: to close directories is up to the kernel, and not for under the lock.
        drop((state, old));
        generation
    }

    /// A directory that was open in that generation.
    pub(super) fn get(&self, name: &str, generation: u64) -> Option<Arc<Dir>> {
        let state = self.state();
        let open = state.open.iter().find(|open| open.name == name);
        // Another call may have looked since, and found a change.
        open.filter(|_| state.generation == generation).map(|open| open.dir.clone())
    }

    /// Keeps a directory that was opened in that generation, if there is a slot for it.
    pub(super) fn insert(&self, name: &str, dir: &Arc<Dir>, generation: u64) {
        let Some(slot) = OpenSlot::take() else { return };
        let open = CachedDir { name: name.to_owned(), dir: dir.clone(), _slot: slot };
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let old = (state.open.len() == Self::MAX_OPEN).then(|| state.open.remove(0));
        state.open.push(open);
        drop((state, old));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A cache that somebody's panic left is a cache still: no step of it leaves it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to keep one directory open, of which the process has a number: one that has a thousand queues must not
/// have thousands of directories open.
#[derive(Debug)]
struct OpenSlot(());

impl OpenSlot {
    const MAX: usize = 64;

    fn take() -> Option<Self> {
        let taken = SLOTS_TAKEN.fetch_add(1, Relaxed);
        // Made in any case, as its drop takes the count back where it was one too many.
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

// The fields' types differ between systems.
#[allow(clippy::unnecessary_cast)]
fn version_of(stat: &Stat) -> Version {
    (stat.st_dev as u64, stat.st_ino as u64, stat.st_ctime as i64, stat.st_ctime_nsec as i64)
}

fn change_time_of(&(_, _, seconds, nanos): &Version) -> Option<SystemTime> {
    let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
    UNIX_EPOCH.checked_add(since)
}
