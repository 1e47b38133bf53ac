//! Locking an element of a normal queue, and reading it under its lock.

use std::ffi::CString;

use rustix::io::Errno;

use super::layout::{LOCKED, Normal, OpenElement};
use crate::dirq::{
    Element, Error, Name, Schema,
    file_name::FileName,
    fs::{Dir, OpenFor},
    root::Opener,
};

/// The open directory of a locked element, and its content if it can be read.
type LockedElement = (OpenElement, Result<Element, Error>);

impl Normal {
    /// Locks an element, or returns `None` if it is already locked or missing.
    pub(super) fn lock_element(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        opened_for: OpenFor,
    ) -> Result<Option<OpenElement>, Error> {
        let Some(found) = self.open_element(opener, name, opened_for)? else { return Ok(None) };
        let OpenElement { parent, dir: element } = &found;
        // `mkdir` fails atomically if the directory exists: exactly one of several processes gets the lock.
        match element.mkdir(LOCKED, self.root.umask) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::not_lockable(element.path(), error)),
        }
        match parent.stat(FileName::element(name.element).c_str()) {
            Ok(_) => Ok(Some(found)),
            // A remover has moved the element away and just unlocked it there. The lock is left to that remover: Perl's
            // and Python's implementations look for a lock when they find the element not empty, and crash if it was
            // removed in the meantime.
            Err(Errno::NOENT) => Ok(None),
            Err(error) => {
                // The original error is more useful than that of the cleanup.
                let _ = element.rmdir(LOCKED);
                Err(Error::io("lock", element.path(), error))
            }
        }
    }

    /// Locks an element and reads it. It stays locked if it cannot be read. Returns `None` if another worker removes
    /// it, whose lock was removed by a purge. That worker also removes the new lock.
    pub(super) fn lock_and_read(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        opened_for: OpenFor,
        limit: u64,
    ) -> Result<Option<LockedElement>, Error> {
        let schema = self.schema()?;
        let Some(found) = self.lock_element(opener, name, opened_for)? else { return Ok(None) };
        let read = self.read_unless_removed(schema, name, &found, limit);
        Ok(read.transpose().map(|read| (found, read)))
    }

    /// Reads an element. Returns `None` if another process removed it in the meantime: the files of an element are
    /// deleted one by one, after it was moved away.
    pub(super) fn read_unless_removed(
        &self,
        schema: &Schema,
        name: &Name,
        found: &OpenElement,
        limit: u64,
    ) -> Result<Option<Element>, Error> {
        let read = self.read(schema, &found.dir, limit);
        let is_whole = read.as_ref().is_ok_and(|element| element.iter().len() == schema.len());
        // Fields may also be missing because they are optional.
        match is_whole || !found.is_removed(name) {
            true => read.map(Some),
            false => Ok(None),
        }
    }

    /// Opens the directory of a locked element and its parent.
    pub(super) fn open_locked(&self, name: &Name) -> Result<OpenElement, Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let found = self
            .open_element(&self.root.opener(), name, OpenFor::Traversal)?
            .ok_or_else(not_locked)?;
        match found.dir.stat(LOCKED) {
            Ok(_) => Ok(found),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", found.dir.path_of(LOCKED), error)),
        }
    }

    /// Reads the directory of an element.
    fn read(&self, schema: &Schema, element: &Dir, limit: u64) -> Result<Element, Error> {
        // A reduced limit (for a read in place, or a prefetch) applies to the sum of all fields.
        let limits_whole_element = limit < self.root.max_size;
        let mut remaining = limit;
        schema.decode(element.path(), |field| {
            let file = CString::new(field).expect("a field's name consists of letters and digits");
            match element.read(&file, remaining) {
                Ok(data) => {
                    if limits_whole_element {
                        remaining -= data.len() as u64;
                    }
                    Ok(Some(data))
                }
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(Error::unreadable("read", element.path_of(&file), error, limit)),
            }
        })
    }
}
