//! The records of a queue at one time, and the cache of the latest. Dead letters may be many, so an iteration does not
//! read all records: see [`Records::snapshot`](super::records::Records::snapshot).

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Name, dir_version::DirVersion, record::Record};

/// The names of dead letters.
pub(super) type DeadLetters = HashSet<Name>;

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
        !self.dead.contains(name) && self.others.get(name).is_none_or(|record| record.is_due(now))
    }

    /// Returns the times at which elements are due, which may be in the past.
    pub(super) fn dues(&self) -> impl Iterator<Item = u64> {
        self.others.values().filter_map(|record| record.due)
    }

    #[cfg(feature = "metrics")]
    pub(super) fn is_dead(&self, name: &Name) -> bool {
        self.dead.contains(name) || self.others.get(name).is_some_and(Record::is_dead)
    }
}

/// The latest snapshot of a queue.
#[derive(Debug, Default)]
pub(super) struct RecordCache(Mutex<Cached>);

#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) snapshot: Arc<Snapshot>,
    /// The versions of the directories of records and of dead letters; `None` if another change may have the same.
    pub(super) version: Option<DirVersion>,
    pub(super) dead_version: Option<DirVersion>,
    /// The number of records at which those of removed elements are purged.
    pub(super) purge_at: usize,
}

impl RecordCache {
    pub(super) fn get(&self) -> Cached {
        self.cached().clone()
    }

    pub(super) fn set(&self, cached: Cached) {
        // Dropped after unlock: it may be large.
        let _old = std::mem::replace(&mut *self.cached(), cached);
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        // Replaced as a whole, so it is consistent at every point where a thread can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
