//! How an element of a simple queue is locked, and what its lock allows: to read it, and to remove it.

use std::{ffi::CStr, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rustix::io::Errno;

use super::layout::Simple;
use crate::dirq::{
    Error, Name,
    file_name::FileName,
    fs::{Dir, is_file},
    root::Opener,
};

impl Simple {
    /// Locks an element, and looks at it through its lock; none where somebody else was quicker. Returns its
    /// directory, too.
    pub(super) fn lock_and_inspect<T>(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
        inspect: impl FnOnce(&Dir, &CStr) -> Result<T, Errno>,
    ) -> Result<Option<(Arc<Dir>, T)>, Error> {
        let Some(dir) = opener.open(name.directory)? else { return Ok(None) };
        let (element, lock) = (FileName::element(name.element), FileName::lock(name.element));
        let failed = |error| Error::io("lock", dir.path_of(element.c_str()), error);
        // First: to touch the element of a lock that is held would keep that young, whose owner may have died.
        match dir.stat(lock.c_str()) {
            Ok(_) => return Ok(None),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        // Before the link, as the lock is as old as the element: so no purge ever finds a new lock that looks old.
        match dir.touch(element.c_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        // A link is one step that fails where the name is taken: of all that try, one gets the lock.
        match dir.link(element.c_str(), lock.c_str()) {
            Ok(()) => {}
            // Locked, or gone.
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        match inspect(&dir, lock.c_str()) {
            Ok(seen) => Ok(Some((dir, seen))),
            // The next one to lock it may have done so already.
            Err(Errno::NOENT) => Ok(None),
            Err(error) => {
                // The first error is the one to tell.
                let _ = dir.unlink(lock.c_str());
                Err(Error::unreadable("lock", dir.path_of(element.c_str()), error, limit))
            }
        }
    }

    /// Locks an element and reads it.
    pub(super) fn lock_and_read(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
    ) -> Result<Option<(Arc<Dir>, Bytes)>, Error> {
        self.lock_and_inspect(opener, name, limit, |dir, lock| Ok(dir.read(lock, limit)?.into()))
    }

    /// What an element holds, by its own name or that of its lock; none where that is gone.
    pub(super) fn read(
        &self,
        name: &Name,
        file: &FileName,
        limit: u64,
    ) -> Result<Option<Bytes>, Error> {
        let Some(dir) = self.root.open(name.directory)? else { return Ok(None) };
        match dir.read(file.c_str(), limit) {
            Ok(data) => Ok(Some(data.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::unreadable("read", dir.path_of(file.c_str()), error, limit)),
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
    let (element, lock) = (FileName::element(name.element), FileName::lock(name.element));
    // In this order: an element that is still there without its lock would be taken once more.
    match dir.unlink(element.c_str()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(Error::io("remove", dir.path_of(element.c_str()), error)),
    }
    // By now it is removed. A lock of nothing is the purge's.
    let _ = dir.unlink(lock.c_str());
    Ok(())
}
