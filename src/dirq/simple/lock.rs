//! How an element of a simple queue is locked, and what its lock allows: to read it, and to remove it.

use std::{ffi::CStr, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rustix::io::Errno;

use super::layout::Simple;
use crate::dirq::{
    Error, Name,
    file_name::FileName,
    fs::{Dir, is_file},
};

impl Simple {
    /// Locks an element, and looks at it through its lock; none where somebody else was quicker. Returns its
    /// directory, too.
    pub(super) fn lock_and<T>(
        &self,
        name: &Name,
        look: impl FnOnce(&Dir, &CStr) -> Result<T, Errno>,
    ) -> Result<Option<(Arc<Dir>, T)>, Error> {
        let Some(dir) = self.root.open(name.directory)? else { return Ok(None) };
        let (element, lock) = (FileName::element(name.element), FileName::lock(name.element));
        // A link is one step that fails where the name is taken: of all that try, one gets the lock.
        match dir.link(element.c_str(), lock.c_str()) {
            Ok(()) => {}
            // Locked, or gone.
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io("lock", dir.path_of(element.c_str()), error)),
        }
        let (touched, seen) = match dir.touch(element.c_str()) {
            // Until now the lock looked as old as the element, and a purge may have taken it away.
            Ok(()) => (true, look(&dir, lock.c_str())),
            Err(error) => (false, Err(error)),
        };
        let error = match seen {
            Ok(seen) => return Ok(Some((dir, seen))),
            // The next one to lock it may have done so already.
            Err(Errno::NOENT) if touched => return Ok(None),
            Err(error) => error,
        };
        // Where it is the element that is gone, as somebody removed it whose lock was purged, this is all that is
        // left of it.
        let _ = dir.unlink(lock.c_str());
        let path = dir.path_of(element.c_str());
        match error {
            Errno::NOENT => Ok(None),
            Errno::LOOP | Errno::INVAL => Err(Error::Foreign { path }),
            error => Err(Error::io("lock", path, error)),
        }
    }

    /// Locks an element and reads it.
    pub(super) fn lock_and_read(&self, name: &Name) -> Result<Option<(Arc<Dir>, Bytes)>, Error> {
        self.lock_and(name, |dir, lock| Ok(dir.read(lock)?.into()))
    }

    /// What an element holds, by its own name or that of its lock; none where that is gone.
    pub(super) fn read(&self, name: &Name, file: &FileName) -> Result<Option<Bytes>, Error> {
        let Some(dir) = self.root.open(name.directory)? else { return Ok(None) };
        let path = || dir.path_of(file.c_str());
        match dir.read(file.c_str()) {
            Ok(data) => Ok(Some(data.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::INVAL) => Err(Error::Foreign { path: path() }),
            Err(error) => Err(Error::io("read", path(), error)),
        }
    }

    /// The path of what a locked element holds.
    pub(super) fn get_path(&self, name: &Name) -> Result<PathBuf, Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let dir = self.root.open(name.directory)?.ok_or_else(not_locked)?;
        let lock = FileName::lock(name.element);
        match dir.stat(lock.c_str()) {
            Ok(stat) if is_file(&stat) => Ok(dir.path_of(lock.c_str())),
            Ok(_) => Err(Error::Foreign { path: dir.path_of(lock.c_str()) }),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", dir.path_of(lock.c_str()), error)),
        }
    }
}

/// Removes an element that is locked, and then its lock.
pub(super) fn remove_locked(dir: &Dir, name: &Name) -> Result<(), Error> {
    // In this order: an element that is still there without its lock would be taken once more.
    for file in [FileName::element(name.element), FileName::lock(name.element)] {
        match dir.unlink(file.c_str()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("remove", dir.path_of(file.c_str()), error)),
        }
    }
    Ok(())
}
