//! How an element of a normal queue is removed: moved out of the way at once, and then taken apart.

use std::{
    ffi::{CStr, CString},
    iter,
};

use rustix::io::Errno;

use super::layout::{LOCKED, Normal, OBSOLETE, OpenElement};
use crate::dirq::{
    Error, Name,
    file_name::FileName,
    fs::{Dir, FileType, OpenFor, is_directory, is_out_of_file_descriptors},
    retry_budget::RetryBudget,
    root::Opener,
    schema::is_field_name,
};

impl Normal {
    /// Removes an element that is locked and was element_dir to be listed.
    pub(super) fn remove_locked<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &Name,
        found: &OpenElement,
    ) -> Result<(), Error> {
        let OpenElement { parent, dir: element } = found;
        let entry = FileName::element(name.element);
        // Before it leaves its place: what can't be taken apart stays, and stays locked.
        let files = data_files(element)?;
        let mut obsolete = self.root.open_or_make(opener, OBSOLETE)?;
        let mut retries = RetryBudget::of("remove");
        // The rename decides: whoever comes with a lock that was purged finds no element any more.
        let moved = loop {
            let moved = FileName::element(self.root.names.next());
            match parent.rename(entry.c_str(), &obsolete, moved.c_str()) {
                Ok(()) => break moved,
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match parent.stat(entry.c_str()) {
                    Ok(_) => {
                        *opener = self.root.opener();
                        obsolete = self.root.open_or_make(opener, OBSOLETE)?;
                    }
                    // Somebody whose lock was purged removed it after all.
                    Err(Errno::NOENT) => return Ok(()),
                    Err(error) => return Err(Error::io("remove", element.path(), error)),
                },
                Err(error) => return Err(Error::io("remove", element.path(), error)),
            }
            retries.spend(|| element.path().to_owned())?;
        };
        // By now it is removed. What can't be taken apart is the purge's.
        while remove_files(element, &files).is_ok() {
            match obsolete.rmdir(moved.c_str()) {
                // Somebody was about to lock it when it moved, and locked it here.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                _ => break,
            }
            if retries.spend(|| obsolete.path_of(moved.c_str())).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Removes the directory of an element that died on its way, with all files in it.
pub(super) fn remove_element_dir(parent: &Dir, name: &CStr) -> Result<(), Errno> {
    let element = match parent.open_subdir(name, OpenFor::Listing) {
        Ok(element) => element,
        // It may be empty.
        Err(error) if is_out_of_file_descriptors(error) => return parent.rmdir(name),
        Err(error) => return Err(error),
    };
    let found = Contents::of(&element)?;
    // Before anything of it is gone: what is in there is none of the format's business.
    if found.directory.is_some() {
        return Err(Errno::NOTEMPTY);
    }
    remove_files(&element, &found.files)?;
    parent.rmdir(name)
}

/// The files of an element, which must be locked. They must have the names of fields.
fn data_files(element: &Dir) -> Result<Vec<CString>, Error> {
    let found = Contents::of(element).map_err(Error::on("list", || element.path()))?;
    if !found.locked {
        return Err(Error::NotLocked { path: element.path().to_owned() });
    }
    let is_field = |file: &&CString| file.to_str().is_ok_and(is_field_name);
    match found.directory.iter().chain(found.files.iter().filter(|file| !is_field(file))).next() {
        Some(foreign) => Err(Error::Foreign { path: element.path_of(foreign) }),
        None => Ok(found.files),
    }
}

/// Removes the files and the lock of an element. What others removed is no error.
fn remove_files(element: &Dir, files: &[CString]) -> Result<(), Errno> {
    let removals = files.iter().map(|file| element.unlink(file));
    for removed in removals.chain(iter::once_with(|| element.rmdir(LOCKED))) {
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is in the directory of an element.
#[derive(Default)]
struct Contents {
    /// All that is no directory.
    files: Vec<CString>,
    locked: bool,
    /// One that is no lock, if there is any.
    directory: Option<CString>,
}

impl Contents {
    /// Of a directory that was opened to be listed.
    fn of(element: &Dir) -> Result<Self, Errno> {
        let mut found = Self::default();
        let mut unknown = Vec::new();
        element.list(|file, file_type| match file_type {
            _ if file == LOCKED => found.locked = true,
            FileType::Directory => found.directory = Some(file.to_owned()),
            FileType::Unknown => unknown.push(file.to_owned()),
            _ => found.files.push(file.to_owned()),
        })?;
        // Some file systems don't tell types in a list.
        for file in unknown {
            match element.stat(&file) {
                Ok(stat) if is_directory(&stat) => found.directory = Some(file),
                Ok(_) => found.files.push(file),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
