//! What a purge takes away, and the part of it that both kinds of queues share. Stale locks and half-written elements
//! are purged where the format of each kind says what they are: in `simple/purge.rs` and `normal/purge.rs`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::{
    Error,
    file_name::FileName,
    fs::{Stat, modified, rmdir},
    root::Root,
};

/// From which age on a purge takes away what its owner left behind.
///
/// Ages go by the files' last change, strictly: what is exactly as old stays. They are as
/// right as the clocks of the machines that share the queue.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::dirq::Purge;
///
/// let patient = Purge::default().max_lock(Duration::from_secs(3600)).max_temp(Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Purge {
    max_temp: Duration,
    max_lock: Duration,
}

impl Purge {
    /// How long an element may be on its way in or out. [`Duration::ZERO`] leaves them all. Defaults to 300
    /// seconds.
    pub fn max_temp(mut self, age: Duration) -> Self {
        self.max_temp = age;
        self
    }

    /// How long a lock may be held since it was taken or touched. [`Duration::ZERO`] leaves them all.
    /// Defaults to 600 seconds.
    pub fn max_lock(mut self, age: Duration) -> Self {
        self.max_lock = age;
        self
    }

    /// For a purge that begins now, by the clock of this machine.
    pub(super) fn cutoffs(&self) -> Cutoffs {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
        let before = |age: Duration| (!age.is_zero()).then(|| now - age.as_nanos() as i128);
        Cutoffs { temporary: before(self.max_temp), lock: before(self.max_lock) }
    }
}

impl Default for Purge {
    fn default() -> Self {
        Self { max_temp: Duration::from_secs(300), max_lock: Duration::from_secs(600) }
    }
}

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PurgeReport {
    /// Elements that were on their way in or out, and were removed.
    pub temporary: u64,
    /// Locks that were taken away: their elements can be locked again.
    pub locks: u64,
    /// Empty directories that were removed.
    pub directories: u64,
    /// What was remembered of elements that are gone: how often they were given out.
    pub records: u64,
    /// What it may not look at or take away, and left; a message tells of the first.
    pub failed: u64,
}

impl PurgeReport {
    /// QueueMetrics what stays, as a right is missing: the rest can be purged all the same.
    pub(super) fn fail(&mut self, error: Error) {
        self.failed += 1;
        if self.failed == 1 {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "a purge leaves what it can't look at or take away");
        }
    }
}

/// Nanoseconds since 1970 before which a last change makes a thing stale; none where that part is off.
pub(super) struct Cutoffs {
    pub(super) temporary: Option<i128>,
    pub(super) lock: Option<i128>,
}

pub(super) fn is_older(stat: &Stat, cutoff: i128) -> bool {
    modified(stat) < cutoff
}

/// Removes the directories of elements that are empty, but for the last, to which others may be about to add.
pub(super) fn remove_empty_directories(root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
    let directories = root.directories()?;
    let Some((_, all_but_last)) = directories.split_last() else { return Ok(()) };
    for &directory in all_but_last {
        let path = root.path().join(FileName::directory(directory).as_str());
        // Without a look whether it is empty: the file system says so, and nobody comes in between.
        match rmdir(&path) {
            Ok(()) => report.directories += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => report.fail(Error::io("remove", path, error)),
        }
    }
    Ok(())
}
