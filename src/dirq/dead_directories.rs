//! Directories in which each element that could be locked is a dead letter. An iteration does not list them again until
//! they or the dead letters change. So old dead letters cost it one `stat` per directory.

use std::{
    collections::HashMap,
    mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use super::{
    Name,
    dir_version::DirVersion,
    file_name::FileName,
    fs::lstat,
    snapshot::{DeadLetters, Snapshot},
};

/// The directories that need not be listed.
#[derive(Debug, Default)]
pub(super) struct DeadDirectories(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The dead letters at that time.
    dead: Arc<DeadLetters>,
    versions: HashMap<u32, DirVersion>,
}

/// A directory before it is listed.
pub(super) enum Directory {
    /// It has nothing to deliver.
    Dead,
    /// It must be listed. It has its version, unless the next change may have the same.
    Unknown(Option<DirVersion>),
}

impl DeadDirectories {
    /// Looks at a directory of the queue at `path`, before it is listed. Its file system must be local.
    pub(super) fn look(&self, path: &Path, records: &Snapshot, directory: u32) -> Directory {
        if records.dead.is_empty() {
            return Directory::Unknown(None);
        }
        // Before `lstat`, as `is_settled` requires.
        let now = SystemTime::now();
        let path = path.join(FileName::directory(directory).as_str());
        // The listing reports the error.
        let Ok(stat) = lstat(&path) else { return Directory::Unknown(None) };
        let version = DirVersion::of(&stat);
        let state = self.state();
        let is_dead = Arc::ptr_eq(&state.dead, &records.dead)
            && state.versions.get(&directory) == Some(&version);
        match is_dead {
            true => Directory::Dead,
            false => Directory::Unknown(Some(version).filter(|version| version.is_settled(now))),
        }
    }

    /// Notes the elements of a directory that are not locked, if all of them are dead letters. `version` is that before
    /// the listing.
    pub(super) fn note(
        &self,
        records: &Snapshot,
        directory: u32,
        version: DirVersion,
        unlocked: &[Name],
    ) {
        if unlocked.is_empty() || !unlocked.iter().all(|name| records.dead.contains(name)) {
            return;
        }
        let mut state = self.state();
        let mut old = None;
        if !Arc::ptr_eq(&state.dead, &records.dead) {
            let new = State { dead: records.dead.clone(), versions: HashMap::new() };
            old = Some(mem::replace(&mut *state, new));
        }
        state.versions.insert(directory, version);
        // The lock is released first: the old dead letters may be many.
        drop((state, old));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a thread can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
