//! The records of a queue at one time. Dead letters may be many, so an iteration does not read all records: see
//! [`Records::snapshot`](super::records::Records::snapshot).

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{Arc, Mutex},
};

use super::{
    Name, dir_version::DirVersion, file_name::FileName, fs::lstat, mutex::lock, record::Record,
};

/// The names of dead letters, and the directories in which each element that could be locked is one of them. An
/// iteration does not list these directories again until they or the names change. So old dead letters cost it one
/// `stat` per directory.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    pub(super) names: HashSet<Name>,
    directories: Mutex<HashMap<u32, DirVersion>>,
}

/// A directory before it is listed.
pub(super) enum Directory {
    /// It has nothing to deliver.
    Dead,
    /// It must be listed. It has its version, unless the next change may have the same.
    Unknown(Option<DirVersion>),
}

impl DeadLetters {
    /// Looks at a directory of the queue at `path`, before it is listed. Its file system must be local.
    pub(super) fn look(&self, path: &Path, directory: u32) -> Directory {
        if self.names.is_empty() {
            return Directory::Unknown(None);
        }
        let path = path.join(FileName::directory(directory).as_str());
        match DirVersion::read(|| lstat(&path)) {
            Ok((version, _)) if lock(&self.directories).get(&directory) == Some(&version) => {
                Directory::Dead
            }
            Ok((version, is_settled)) => Directory::Unknown(is_settled.then_some(version)),
            // The listing reports the error.
            Err(_) => Directory::Unknown(None),
        }
    }

    /// Notes the elements of a directory that are not locked, if all of them are dead letters. `version` is that before
    /// the listing.
    pub(super) fn note(&self, directory: u32, version: DirVersion, unlocked: &[Name]) {
        if !unlocked.is_empty() && unlocked.iter().all(|name| self.names.contains(name)) {
            lock(&self.directories).insert(directory, version);
        }
    }
}

impl FromIterator<Name> for DeadLetters {
    fn from_iter<I: IntoIterator<Item = Name>>(names: I) -> Self {
        Self { names: names.into_iter().collect(), directories: Mutex::default() }
    }
}

/// The records of a queue at one time.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The dead letters whose only record is in the directory of dead letters. The same value until one is added or
    /// removed.
    pub(super) dead: Arc<DeadLetters>,
    /// The records of all other elements.
    pub(super) others: Arc<HashMap<Name, Record>>,
}

impl Snapshot {
    /// Returns whether an element may be delivered at the time `now`.
    pub(super) fn is_due(&self, name: &Name, now: u64) -> bool {
        !self.dead.names.contains(name)
            && self.others.get(name).is_none_or(|record| record.is_due(now))
    }

    /// Returns the times at which elements are due, which may be in the past.
    pub(super) fn dues(&self) -> impl Iterator<Item = u64> {
        self.others.values().filter_map(|record| record.due)
    }

    #[cfg(feature = "metrics")]
    pub(super) fn is_dead(&self, name: &Name) -> bool {
        self.dead.names.contains(name) || self.others.get(name).is_some_and(Record::is_dead)
    }
}

/// The latest snapshot of a queue.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) snapshot: Arc<Snapshot>,
    /// The versions of the directories of records and of dead letters; `None` if another change may have the same.
    pub(super) version: Option<DirVersion>,
    pub(super) dead_version: Option<DirVersion>,
    /// The number of records at which those of removed elements are purged.
    pub(super) purge_at: usize,
}

impl Cached {
    /// Fewer records cost little.
    pub(super) const MIN_PURGE: usize = 64;
}

impl Default for Cached {
    fn default() -> Self {
        let snapshot = Arc::default();
        Self { snapshot, version: None, dead_version: None, purge_at: Self::MIN_PURGE }
    }
}
