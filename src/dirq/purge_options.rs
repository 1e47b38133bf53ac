//! The settings and the report of a purge: from what age on something is stale, and which times are wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{
    Error,
    fs::{Stat, modified},
};

/// The ages from which a purge removes leftovers of crashed processes.
///
/// ```
/// use std::time::Duration;
/// use fleeting::dirq::Purge;
///
/// let patient = Purge::default().max_lock(Duration::from_secs(3600)).max_temp(Duration::ZERO);
/// ```
///
/// Ages are measured by the modification time of the files. A file that is exactly as old as the limit is kept. Ages
/// are as accurate as the clocks of the machines that share your queue.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Purge {
    max_temp: Duration,
    max_lock: Duration,
}

impl Purge {
    pub(super) const DEFAULT_MAX_LOCK: Duration = Duration::from_secs(600);

    /// Sets the maximum age of an element that is not completely added or removed. [`Duration::ZERO`] keeps all of
    /// them. Defaults to 300 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::Purge;
    /// // An upload into the queue may take up to an hour.
    /// let purge = Purge::default().max_temp(Duration::from_secs(3_600));
    /// ```
    pub fn max_temp(mut self, age: Duration) -> Self {
        self.max_temp = age;
        self
    }

    /// Sets the maximum age of a lock, since it was acquired or touched. [`Duration::ZERO`] keeps all locks. Defaults
    /// to 600 seconds.
    ///
    /// An age of less than one second also removes locks of elements that a stream has just prefetched: the work of
    /// these may be done twice.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::Purge;
    /// // No job takes longer than half an hour.
    /// let purge = Purge::default().max_lock(Duration::from_secs(1_800));
    /// ```
    pub fn max_lock(mut self, age: Duration) -> Self {
        self.max_lock = age;
        self
    }

    /// Returns the cutoffs of a purge that begins now, by the clock of this machine.
    pub(super) fn cutoffs(&self) -> Cutoffs {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
        let before = |age: Duration| (!age.is_zero()).then(|| now - age.as_nanos() as i128);
        Cutoffs { now, temporary: before(self.max_temp), lock: before(self.max_lock) }
    }
}

impl Default for Purge {
    fn default() -> Self {
        Self { max_temp: Duration::from_secs(300), max_lock: Self::DEFAULT_MAX_LOCK }
    }
}

/// The result of a purge: numbers of removed leftovers. Returned by [`DirQueue::purge`](super::DirQueue::purge), which
/// has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PurgeReport {
    /// Elements that were not completely added or removed, and were deleted.
    pub temporary: u64,
    /// Locks that were removed: their elements can be locked again.
    pub locks: u64,
    /// Locks whose time was more than a minute in the future, because a clock was wrong. Their age was set to zero:
    /// otherwise they would not become stale before that time.
    pub future_locks: u64,
    /// Empty directories that were removed.
    pub directories: u64,
    /// Records of elements that no longer exist: their delivery counts.
    pub records: u64,
    /// Items that could not be read or removed, and were kept. The first one is logged.
    pub failed: u64,
}

impl PurgeReport {
    /// Counts an item that cannot be purged, for instance for lack of permission. The purge continues with the others.
    pub(super) fn fail(&mut self, error: Error) {
        self.failed += 1;
        if self.failed == 1 {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "purge skipped an item that it could not read or remove");
        }
    }
}

/// Modification times, in nanoseconds since 1970, before which an item is stale; `None` if that part of the purge is
/// off.
pub(super) struct Cutoffs {
    pub(super) now: i128,
    pub(super) temporary: Option<i128>,
    pub(super) lock: Option<i128>,
}

pub(super) fn is_older(stat: &Stat, cutoff: i128) -> bool {
    modified(stat) < cutoff
}

impl Cutoffs {
    /// Clocks of machines that share a queue may differ by this much. Nanoseconds.
    const TOLERANCE: i128 = 60_000_000_000;

    /// Returns whether a lock is from the future: a clock was wrong when it was acquired.
    pub(super) fn is_future(&self, stat: &Stat) -> bool {
        modified(stat) > self.now + Self::TOLERANCE
    }
}
