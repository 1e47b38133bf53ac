//! Locking an element of a simple queue, and what a lock permits: reading and removing the element.

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
    /// Locks an element, and inspects it. Returns its directory and the result, or `None` if it is already locked or
    /// missing.
    pub(super) fn lock_and_inspect<T>(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
        inspect: impl FnOnce(&Dir, &CStr) -> Result<T, Errno>,
    ) -> Result<Option<(Arc<Dir>, T)>, Error> {
        let Some(dir) = opener.open(name.directory)? else { return Ok(None) };
        let (element, lock) = (FileName::element(name.element), FileName::lock(name.element));
        let failed = |error| Error::not_lockable(dir.path_of(element.c_str()), error);
        // Checked first: touching a locked element would keep its lock young, although the owner may have crashed.
        match dir.stat(lock.c_str()) {
            Ok(_) => return Ok(None),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        // Before the link: the lock shares the inode, and so the age, of the element. A purge never finds a new lock
        // that looks stale.
        match dir.touch(element.c_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        // `link` fails atomically if the name is taken: exactly one of several processes gets the lock.
        match dir.link(element.c_str(), lock.c_str()) {
            Ok(()) => {}
            // Already locked, or removed.
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        // By the name of the element, because `link` can succeed after another worker has removed the element and its
        // lock: if it had found the element before, and the file still has its temporary name, which Python's add
        // removes last.
        match inspect(&dir, element.c_str()) {
            Ok(seen) => Ok(Some((dir, seen))),
            Err(error) => {
                // On failure the purge removes it later. And the original error is more useful than that of the
                // cleanup.
                let _ = dir.unlink(lock.c_str());
                match error {
                    Errno::NOENT => Ok(None),
                    _ => Err(Error::unreadable("lock", dir.path_of(element.c_str()), error, limit)),
                }
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
        self.lock_and_inspect(opener, name, limit, |dir, element| {
            Ok(dir.read(element, limit)?.into())
        })
    }

    /// Reads an element through its own name or through its lock. Returns `None` if that file is missing.
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

    /// Returns the path of a locked element's content.
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

/// Removes a locked element and its lock. Returns false if the element was missing.
pub(super) fn remove_locked(dir: &Dir, name: &Name) -> Result<bool, Error> {
    let (element, lock) = (FileName::element(name.element), FileName::lock(name.element));
    // Data first: an element without its lock would be delivered again.
    let is_removed = match dir.unlink(element.c_str()) {
        Ok(()) => true,
        Err(Errno::NOENT) => false,
        Err(error) => return Err(Error::io("remove", dir.path_of(element.c_str()), error)),
    };
    // The element is removed by now. On failure the purge removes the lock later.
    let _ = dir.unlink(lock.c_str());
    Ok(is_removed)
}
