use std::{
    mem,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{Stat, stat};

use super::fs::Folder;

/// The directories of a queue in memory that were opened last.
///
/// What the kernel says of the queue's own directory tells whether they still are what their paths lead to: they
/// are, if it is the same directory, and nothing in it was made, removed or renamed since, as the time of its
/// last change says. So one look at it replaces the opening of each of them. On a network, such times are not to
/// be trusted.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// As it was seen last.
    queue: Seen,
    /// Another one for each that was seen; zero before the first.
    generation: u64,
    /// Whether the next change of the queue's directory must show in its time.
    settled: bool,
    open: Vec<Open>,
}

/// Device, inode, and seconds and nanoseconds of the last change.
type Seen = (u64, u64, i64, i64);

#[derive(Debug)]
struct Open {
    name: String,
    folder: Arc<Folder>,
    _room: Room,
}

impl Kept {
    /// Those for elements that come and go, and those for their way in and out.
    const MAX_OPEN: usize = 4;
    /// Changes that follow each other more closely than the kernel's clock ticks may have the same time.
    const TICK: Duration = Duration::from_millis(100);

    /// Looks at the queue's directory. A number other than the last means that something in it has changed, and
    /// none that this can't be told.
    pub(super) fn look(&self, path: &Path) -> Option<u64> {
        let now = SystemTime::now();
        let seen = seen(&stat(path).ok()?);
        let mut state = self.state();
        let next = State { queue: seen, generation: state.generation + 1, ..State::default() };
        let old = (state.queue != seen).then(|| mem::replace(&mut *state, next));
        if !state.settled {
            state.settled = changed(&seen)
                .and_then(|changed| now.duration_since(changed).ok())
                .is_some_and(|age| age > Self::TICK);
        }
        let told = state.settled.then_some(state.generation);
        drop((state, old));
        told
    }

    /// A directory that was open at that look.
    pub(super) fn get(&self, name: &str, generation: u64) -> Option<Arc<Folder>> {
        let state = self.state();
        let open = state.open.iter().find(|open| open.name == name);
        open.filter(|_| state.generation == generation).map(|open| open.folder.clone())
    }

    /// Keeps a directory that was opened after that look.
    pub(super) fn keep(&self, name: &str, folder: &Arc<Folder>, generation: u64) {
        let Some(room) = Room::take() else { return };
        let open = Open { name: name.to_owned(), folder: folder.clone(), _room: room };
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let old = (state.open.len() == Self::MAX_OPEN).then(|| state.open.remove(0));
        state.open.push(open);
        drop((state, old));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that has a thousand queues must not have thousands of directories open.
#[derive(Debug)]
struct Room(());

impl Room {
    const ALL: usize = 64;

    fn take() -> Option<Self> {
        let taken = TAKEN.fetch_add(1, Relaxed);
        let room = Self(());
        (taken < Self::ALL).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Relaxed);
    }
}

static TAKEN: AtomicUsize = AtomicUsize::new(0);

// The fields' types differ between systems.
#[allow(clippy::unnecessary_cast)]
fn seen(stat: &Stat) -> Seen {
    (stat.st_dev as u64, stat.st_ino as u64, stat.st_ctime as i64, stat.st_ctime_nsec as i64)
}

fn changed(&(_, _, seconds, nanos): &Seen) -> Option<SystemTime> {
    let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
    UNIX_EPOCH.checked_add(since)
}
