//! Purging stale locks, and elements that were not completely added or removed, of a normal queue.

use std::ffi::CStr;

use rustix::io::Errno;

use super::{
    layout::{LOCKED, Normal, OBSOLETE, TEMPORARY},
    remove::remove_element_dir,
};
use crate::dirq::{
    Error, Purge, PurgeReport,
    file_name::{FileName, element_of},
    fs::{Dir, FileType, OpenFor},
    purge_options::{is_older, remove_empty_directories},
};

impl Normal {
    pub(super) fn purge_stale(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let cutoffs = purge.cutoffs();
        let mut report = PurgeReport::default();
        remove_empty_directories(&self.root, &mut report)?;
        if let Some(cutoff) = cutoffs.temporary {
            for directory in [TEMPORARY, OBSOLETE] {
                if let Err(error) = self.purge_half_done(directory, cutoff, &mut report) {
                    report.fail(error);
                }
            }
        }
        if let Some(cutoff) = cutoffs.lock {
            for directory in self.root.directories()? {
                if let Err(error) = self.purge_locks(directory, cutoff, &mut report) {
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
        cutoff: i128,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let Some(dir) = self.root.opener().open_named(directory)? else { return Ok(()) };
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
                Ok(stat) if is_older(&stat, cutoff) => remove_element_dir(&dir, name),
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => report.temporary += 1,
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
        cutoff: i128,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let names = self.root.elements(directory, FileType::Directory)?;
        let dir = match self.root.open(directory) {
            Ok(Some(dir)) => dir,
            Ok(None) | Err(Error::Foreign { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in names {
            match purge_lock(&dir, FileName::element(name.element).c_str(), cutoff) {
                Ok(true) => report.locks += 1,
                // Another process removed it first, or it is not an element.
                Ok(false) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => report.fail(Error::io("unlock", self.root.path_of(&name), error)),
            }
        }
        Ok(())
    }
}

/// Removes the lock of an element if it is stale. Returns false if there is no stale lock.
fn purge_lock(dir: &Dir, element: &CStr, cutoff: i128) -> Result<bool, Errno> {
    // The age of an element is the age of its lock, because creating `locked` modifies the directory. This first check
    // only saves further calls for recent elements.
    if !is_older(&dir.stat(element)?, cutoff) {
        return Ok(false);
    }
    let element_dir = dir.open_subdir(element, OpenFor::Traversal)?;
    // The lock is checked before the age: if it was acquired after the first check, the element is young again. In the
    // reverse order, the lock could be newer than the age that was read.
    match element_dir.stat(LOCKED) {
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error),
    }
    if !is_older(&dir.stat(element)?, cutoff) {
        return Ok(false);
    }
    element_dir.rmdir(LOCKED).map(|()| true)
}
