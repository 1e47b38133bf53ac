//! The purge of a queue and of its records, and the steps that both kinds of queues share. `simple/purge.rs` and
//! `normal/purge.rs` remove stale locks and incomplete elements, which depend on the format of each kind.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::{
    Error, Purge, PurgeReport,
    file_name::FileName,
    fs::{Dir, is_out_of_file_descriptors, rmdir},
    protocol::Protocol,
    records::Records,
    root::Root,
};

/// The right to remove a stale lock. It excludes other purges from the same directory.
///
/// Without it, another purge that has found the same lock could remove it and a worker could lock the element, just
/// before this one removes what is then a new lock.
pub(super) struct PurgeTurn {
    /// `None` if the file system has no advisory locks.
    _lock: Option<OwnedFd>,
}

impl PurgeTurn {
    /// Returns `None` if another purge has it, or if the system lacks resources. That purge may have been suspended, so
    /// this does not wait: the next purge finds the lock again.
    pub(super) fn take(dir: &Dir) -> Option<Self> {
        match dir.try_lock() {
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::NOMEM) => None,
            Err(error) if is_out_of_file_descriptors(error) => None,
            lock => Some(Self { _lock: lock.ok() }),
        }
    }
}

/// Removes the leftovers of crashed processes.
pub(super) fn purge_all<P: Protocol + ?Sized>(
    queue: &P,
    purge: &Purge,
) -> Result<PurgeReport, Error> {
    let mut report = queue.purge(purge)?;
    match Records::open(queue.root()) {
        Ok(Some(records)) => records.purge(queue.root(), &mut report)?,
        Ok(None) => {}
        Err(error) => report.fail(error),
    }
    Ok(report)
}

/// Removes all empty directories of elements except the last, because other processes may be about to add to it.
pub(super) fn remove_empty_directories(root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
    let directories = root.directories()?;
    let Some((_, all_but_last)) = directories.split_last() else { return Ok(()) };
    for &directory in all_but_last {
        let path = root.path().join(FileName::directory(directory).as_str());
        // Without checking first: `rmdir` fails atomically if the directory is not empty.
        match rmdir(&path) {
            Ok(()) => report.directories += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => report.fail(Error::io("remove", path, error)),
        }
    }
    Ok(())
}
