//! How an element of a normal queue is locked, and read under its lock.

use std::ffi::CString;

use rustix::io::Errno;

use super::layout::{LOCKED, Normal, OpenElement};
use crate::dirq::{
    Element, Error, Name, Schema,
    file_name::FileName,
    fs::{Dir, OpenFor},
    root::Opener,
};

impl Normal {
    /// Locks an element; none where somebody else was quicker.
    pub(super) fn lock_element(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        opened_for: OpenFor,
    ) -> Result<Option<OpenElement>, Error> {
        let Some(found) = self.enter(opener, name, opened_for)? else { return Ok(None) };
        let OpenElement { parent, dir: element } = &found;
        // To make a directory is one step that fails where there is one: of all that try, one gets the lock.
        match element.mkdir(LOCKED, self.root.umask) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io("lock", element.path(), error)),
        }
        // Who removes it may just have moved it away, and then waits for it to be empty.
        match parent.stat(FileName::element(name.element).c_str()) {
            Ok(_) => Ok(Some(found)),
            Err(error) => {
                // By the open directory, wherever it is now: else the remover would find it full.
                let _ = element.rmdir(LOCKED);
                match error {
                    Errno::NOENT => Ok(None),
                    error => Err(Error::io("lock", element.path(), error)),
                }
            }
        }
    }

    /// Locks an element and reads it.
    pub(super) fn lock_and_read(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        opened_for: OpenFor,
    ) -> Result<Option<(OpenElement, Element)>, Error> {
        let schema = self.schema()?;
        let Some(found) = self.lock_element(opener, name, opened_for)? else { return Ok(None) };
        match self.read(schema, &found.dir) {
            Ok(read) => Ok(Some((found, read))),
            Err(error) => {
                // The first error is the one to tell.
                let _ = found.dir.rmdir(LOCKED);
                Err(error)
            }
        }
    }

    /// The directory of an element that is locked.
    pub(super) fn enter_locked(&self, name: &Name) -> Result<Dir, Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let found =
            self.enter(&self.root.opener(), name, OpenFor::Traversal)?.ok_or_else(not_locked)?;
        match found.dir.stat(LOCKED) {
            Ok(_) => Ok(found.dir),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", found.dir.path_of(LOCKED), error)),
        }
    }

    /// What is in the directory of an element.
    pub(super) fn read(&self, schema: &Schema, element: &Dir) -> Result<Element, Error> {
        schema.decode(element.path(), |field| {
            let file = CString::new(field).expect("a field's name is of letters and digits");
            match element.read(&file) {
                Ok(data) => Ok(Some(data)),
                Err(Errno::NOENT) => Ok(None),
                Err(Errno::LOOP | Errno::INVAL) => {
                    Err(Error::Foreign { path: element.path_of(&file) })
                }
                Err(error) => Err(Error::io("read", element.path_of(&file), error)),
            }
        })
    }
}
