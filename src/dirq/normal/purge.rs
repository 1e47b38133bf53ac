//! Purging stale locks, and elements that were not completely added or removed, of a normal queue.

use std::ffi::CStr;

use rustix::io::Errno;

use super::{
    layout::{LOCKED, Normal, OBSOLETE, TEMPORARY},
    remove::{remove_element_dir, remove_unpublished},
};
use crate::dirq::{
    Error, Purge, PurgeReport,
    file_name::{FileName, element_of},
    fs::{Dir, FileType, OpenFor},
    purge_options::{Cutoffs, is_older},
    shared_purge::{PurgeTurn, remove_empty_directories},
};

impl Normal {
    pub(super) fn purge_stale(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let cutoffs = purge.cutoffs();
        let mut report = PurgeReport::default();
        remove_empty_directories(&self.root, &mut report)?;
        if cutoffs.temporary.is_some() {
            for directory in [TEMPORARY, OBSOLETE] {
                if let Err(error) = self.purge_half_done(directory, &cutoffs, &mut report) {
                    report.fail(error);
                }
            }
        }
        if cutoffs.lock.is_some() {
            for directory in self.root.directories()? {
                if let Err(error) = self.purge_locks(directory, &cutoffs, &mut report) {
                    report.fail(error);
                }
            }
        }
        Ok(report)
    }

    /// Deletes stale elements in `temporary` or `obsolete`.
    fn purge_half_done(
        &self,
        directory: &str,
        cutoffs: &Cutoffs,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let Some(cutoff) = cutoffs.temporary else { return Ok(()) };
        let mut opener = self.root.opener();
        let Some(dir) = opener.open_named(directory)? else { return Ok(()) };
        let mut found = Vec::new();
        let listed = dir.list(|name, _| found.extend(element_of(name.to_bytes())));
        match listed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("list", dir.path(), error)),
        }
        for element in found {
            let element = FileName::element(element);
            let name = element.c_str();
            let removed = match dir.stat(name) {
                Ok(stat) if is_older(&stat, cutoff) && directory == TEMPORARY => {
                    let obsolete = self.root.open_or_make(&mut opener, OBSOLETE)?;
                    let moved = FileName::element(self.root.names.next());
                    remove_unpublished(&dir, name, &obsolete, moved.c_str()).map(|()| true)
                }
                Ok(stat) if is_older(&stat, cutoff) => {
                    remove_element_dir(&dir, name).map(|()| true)
                }
                // A clock was wrong: it would not become stale before that time.
                Ok(stat) if cutoffs.is_future(&stat) => dir.touch(name).map(|()| false),
                Ok(_) => Ok(false),
                Err(error) => Err(error),
            };
            match removed {
                Ok(is_removed) => report.temporary += u64::from(is_removed),
                // Another process removed it first, or it does not have the format of an element.
                Err(
                    Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP,
                ) => {}
                Err(error) => report.fail(Error::io("purge", dir.path_of(name), error)),
            }
        }
        Ok(())
    }

    /// Removes the stale locks of a directory, so that their elements can be locked again.
    fn purge_locks(
        &self,
        directory: u32,
        cutoffs: &Cutoffs,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let names = self.root.elements(directory, FileType::Directory)?;
        let dir = match self.root.open(directory) {
            Ok(Some(dir)) => dir,
            Ok(None) | Err(Error::Foreign { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in names {
            match purge_lock(&dir, FileName::element(name.element).c_str(), cutoffs) {
                Ok(Purged::Stale) => report.locks += 1,
                Ok(Purged::Future) => report.future_locks += 1,
                // Another process removed it first, or it is not an element.
                Ok(Purged::Nothing) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => report.fail(Error::io("unlock", self.root.path_of(&name), error)),
            }
        }
        Ok(())
    }
}

/// The action of a purge on a lock.
enum Purged {
    /// It was stale, and was removed.
    Stale,
    /// It was from the future, and its age was set to zero.
    Future,
    Nothing,
}

/// Removes the lock of an element if it is stale.
fn purge_lock(dir: &Dir, element: &CStr, cutoffs: &Cutoffs) -> Result<Purged, Errno> {
    let Some(cutoff) = cutoffs.lock else { return Ok(Purged::Nothing) };
    // The age of an element is the age of its lock, because creating `locked` modifies the directory. This first check
    // only saves further calls for recent elements.
    let stat = dir.stat(element)?;
    if !is_older(&stat, cutoff) && !cutoffs.is_future(&stat) {
        return Ok(Purged::Nothing);
    }
    let element_dir = dir.open_subdir(element, OpenFor::Traversal)?;
    let Some(_turn) = PurgeTurn::take(dir) else { return Ok(Purged::Nothing) };
    // The lock is checked before the age: if it was acquired after the first check, the element is young again. In the
    // reverse order, the lock could be newer than the age that was read.
    match element_dir.stat(LOCKED) {
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(Purged::Nothing),
        Err(error) => return Err(error),
    }
    match dir.stat(element)? {
        stat if is_older(&stat, cutoff) => element_dir.rmdir(LOCKED).map(|()| Purged::Stale),
        stat if cutoffs.is_future(&stat) => dir.touch(element).map(|()| Purged::Future),
        _ => Ok(Purged::Nothing),
    }
}
