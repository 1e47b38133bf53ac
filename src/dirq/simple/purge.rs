//! Purging stale locks and incomplete elements of a simple queue.

use std::ffi::CStr;

use rustix::io::Errno;

use super::layout::{Companion, Simple, companion_of};
use crate::dirq::{
    Error, Purge, PurgeReport,
    file_name::FileName,
    fs::{Dir, is_directory},
    purge_options::{Cutoffs, is_older},
    shared_purge::{PurgeTurn, remove_empty_directories},
};

impl Simple {
    pub(super) fn purge_stale(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let cutoffs = purge.cutoffs();
        let mut report = PurgeReport::default();
        if cutoffs.temporary.is_some() || cutoffs.lock.is_some() {
            for directory in self.root.directories()? {
                if let Err(error) = self.purge_directory(directory, &cutoffs, &mut report) {
                    report.fail(error);
                }
            }
        }
        // Last, because the purge may have emptied directories.
        remove_empty_directories(&self.root, &mut report)?;
        Ok(report)
    }

    /// Removes the stale `.lck` and `.tmp` files of one directory, and nothing else. The element of a lock may be
    /// missing.
    fn purge_directory(
        &self,
        directory: u32,
        cutoffs: &Cutoffs,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let mut found = Vec::new();
        let listed = self.root.list(directory, |name, _| found.extend(companion_of(name)))?;
        let Some(dir) = listed else { return Ok(()) };
        for (element, companion) in found {
            let (file, cutoff) = match companion {
                Companion::Lock => (FileName::lock(element), cutoffs.lock),
                Companion::Temporary => (FileName::temporary(element), cutoffs.temporary),
            };
            let (name, Some(cutoff)) = (file.c_str(), cutoff) else { continue };
            let unlinked = match dir.stat(name) {
                // A clock was wrong: it would not become stale before that time.
                Ok(stat) if cutoffs.is_future(&stat) && !is_directory(&stat) => {
                    // A lock shares the age of its element.
                    match dir.touch(name) {
                        Ok(()) if matches!(companion, Companion::Lock) => report.future_locks += 1,
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => report.fail(Error::io("touch", dir.path_of(name), error)),
                    }
                    continue;
                }
                // A directory is not a lock or a temporary file; its name does not matter.
                Ok(stat) if is_older(&stat, cutoff) && !is_directory(&stat) => match companion {
                    Companion::Lock => purge_lock(&dir, name, cutoff),
                    Companion::Temporary => dir.unlink(name).map(|()| true),
                },
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            match (unlinked, companion) {
                (Ok(false), _) => {}
                (Ok(true), Companion::Lock) => report.locks += 1,
                (Ok(true), Companion::Temporary) => report.temporary += 1,
                // Another process removed it first.
                (Err(Errno::NOENT), _) => {}
                (Err(error), _) => report.fail(Error::io("purge", dir.path_of(name), error)),
            }
        }
        Ok(())
    }
}

/// Removes a lock that was found stale, unless another purge does. Returns whether it did.
fn purge_lock(dir: &Dir, lock: &CStr, cutoff: i128) -> Result<bool, Errno> {
    let Some(_turn) = PurgeTurn::take(dir) else { return Ok(false) };
    // Again, because another purge may have removed it until then, and the element may be locked again.
    match dir.stat(lock)? {
        stat if is_older(&stat, cutoff) => dir.unlink(lock).map(|()| true),
        _ => Ok(false),
    }
}
