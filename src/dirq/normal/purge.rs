//! The purge of stale locks, and of elements that died on their way in or out, from a normal queue.

use rustix::io::Errno;

use super::{
    layout::{LOCKED, Normal, OBSOLETE, TEMPORARY},
    remove::remove_element_dir,
};
use crate::dirq::{
    Error, Purge, PurgeReport,
    file_name::{FileName, element_of},
    fs::{FileType, OpenFor},
    purge::{is_older, remove_empty_directories},
};

impl Normal {
    pub(super) fn purge_stale(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let cutoffs = purge.cutoffs();
        let mut report = PurgeReport::default();
        remove_empty_directories(&self.root, &mut report)?;
        if let Some(cutoff) = cutoffs.temporary {
            report.temporary += self.purge_half_done(TEMPORARY, cutoff)?;
            report.temporary += self.purge_half_done(OBSOLETE, cutoff)?;
        }
        if let Some(cutoff) = cutoffs.lock {
            report.locks += self.purge_locks(cutoff)?;
        }
        Ok(report)
    }

    /// Removes what died on its way in or out.
    fn purge_half_done(&self, directory: &str, cutoff: i128) -> Result<u64, Error> {
        let Some(dir) = self.root.opener().open_named(directory)? else { return Ok(0) };
        let mut found = Vec::new();
        let listed = dir.list(|name, _| found.extend(element_of(name.to_bytes())));
        match listed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("list", dir.path(), error)),
        }
        let mut purged = 0;
        for element in found {
            let element = FileName::element(element);
            let name = element.c_str();
            match dir.stat(name) {
                Ok(stat) if is_older(&stat, cutoff) => {}
                Ok(_) | Err(Errno::NOENT) => continue,
                Err(error) => return Err(Error::io("purge", dir.path_of(name), error)),
            }
            match remove_element_dir(&dir, name) {
                Ok(()) => purged += 1,
                // It is gone, or is not as the format has it.
                Err(
                    Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP,
                ) => {}
                Err(error) => return Err(Error::io("purge", dir.path_of(name), error)),
            }
        }
        Ok(purged)
    }

    /// Removes the locks that were not touched for too long: their elements can be locked again.
    fn purge_locks(&self, cutoff: i128) -> Result<u64, Error> {
        let mut purged = 0;
        for directory in self.root.directories()? {
            let names = self.root.elements(directory, FileType::Directory)?;
            let dir = match self.root.open(directory) {
                Ok(Some(dir)) => dir,
                Ok(None) | Err(Error::Foreign { .. }) => continue,
                Err(error) => return Err(error),
            };
            for name in names {
                let element = FileName::element(name.element);
                // The age of an element is that of its lock, as to make `locked` changes its directory. So most, which
                // are not locked, cost a try to remove what is not there.
                let unlocked = match dir.stat(element.c_str()) {
                    Ok(stat) if is_older(&stat, cutoff) => dir
                        .enter(element.c_str(), OpenFor::Traversal)
                        .and_then(|element| element.rmdir(LOCKED)),
                    Ok(_) => continue,
                    Err(error) => Err(error),
                };
                match unlocked {
                    Ok(()) => purged += 1,
                    // It is not locked, is gone, or is no element.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => {
                        return Err(Error::io("unlock", self.root.path_of(&name), error));
                    }
                }
            }
        }
        Ok(purged)
    }
}
