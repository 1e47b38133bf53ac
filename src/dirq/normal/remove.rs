//! Removing an element of a normal queue: it is moved away atomically, and then its files are deleted.

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
    /// Removes a locked element whose directory was opened for listing.
    pub(super) fn remove_locked<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &Name,
        found: &OpenElement,
    ) -> Result<(), Error> {
        let OpenElement { parent, dir: element } = found;
        let entry = FileName::element(name.element);
        // Checked before the move: an element with unexpected content stays in its place, and stays locked.
        let files = data_files(element)?;
        let mut obsolete = self.root.open_or_make(opener, OBSOLETE)?;
        let mut retries = RetryBudget::of("remove");
        // The rename is decisive: another process that still believes it has the lock finds no element.
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
                    // Another worker removed it. A network file system may repeat the call, so that it was this one.
                    Err(Errno::NOENT) if self.root.is_local() => {
                        return Err(Error::NotLocked { path: element.path().to_owned() });
                    }
                    Err(Errno::NOENT) => return Ok(()),
                    Err(error) => return Err(Error::io("remove", element.path(), error)),
                },
                // On the lower layer of an overlay, a directory cannot be renamed.
                Err(Errno::XDEV) => {
                    return remove_in_place(parent, entry.c_str(), element, &files)
                        .map_err(Error::on("remove", || element.path()));
                }
                Err(error) => return Err(Error::io("remove", element.path(), error)),
            }
            retries.spend(|| element.path().to_owned())?;
        };
        // The element is removed by now. If deleting fails, the purge deletes it later.
        while remove_files(element, &files).is_ok() {
            match obsolete.rmdir(moved.c_str()) {
                // Another process was about to lock the element when it moved, and created its lock here.
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

/// Deletes a locked element without moving it away first. If the process crashes in between, the element stays without
/// some of its files.
fn remove_in_place(
    parent: &Dir,
    name: &CStr,
    element: &Dir,
    files: &[CString],
) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        remove_files(element, files)?;
        tries += 1;
        match parent.rmdir(name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Another process has locked the empty element. It finds nothing to read and unlocks it.
            Err(Errno::NOTEMPTY | Errno::EXIST) if tries < MAX_TRIES_IN_PLACE => {}
            Err(error) => return Err(error),
        }
    }
}

/// More than the number of processes that are likely to lock an element at the same moment.
const MAX_TRIES_IN_PLACE: u32 = 256;

/// Deletes a leftover directory of an element, with all files in it.
pub(super) fn remove_element_dir(parent: &Dir, name: &CStr) -> Result<(), Errno> {
    let element = match parent.open_subdir(name, OpenFor::Listing) {
        Ok(element) => element,
        // It may be empty, and `rmdir` needs no descriptor.
        Err(error) if is_out_of_file_descriptors(error) => return parent.rmdir(name),
        Err(error) => return Err(error),
    };
    let found = Contents::of(&element)?;
    // Checked before anything is deleted: subdirectories are not part of the format and are kept.
    if found.directory.is_some() {
        return Err(Errno::NOTEMPTY);
    }
    remove_files(&element, &found.files)?;
    parent.rmdir(name)
}

/// Deletes a directory of `temporary` whose writer seems to have crashed. It is first moved to `obsolete`, because a
/// writer that is only slow may publish it at any moment: either this rename or that of the writer fails, and the
/// writer then writes the element again.
pub(super) fn remove_unpublished(
    temporary: &Dir,
    name: &CStr,
    obsolete: &Dir,
    moved: &CStr,
) -> Result<(), Errno> {
    let found = match temporary.open_subdir(name, OpenFor::Listing) {
        Ok(element) => Contents::of(&element)?,
        // As in `remove_element_dir`.
        Err(error) if is_out_of_file_descriptors(error) => return temporary.rmdir(name),
        Err(error) => return Err(error),
    };
    if found.directory.is_some() {
        return Err(Errno::NOTEMPTY);
    }
    match temporary.rename(name, obsolete, moved) {
        Ok(()) => remove_element_dir(obsolete, moved),
        // On the lower layer of an overlay, which has no writers, or without the permission to change its contents.
        Err(Errno::XDEV | Errno::ACCESS) => remove_element_dir(temporary, name),
        Err(error) => Err(error),
    }
}

/// Returns the files of an element, which must be locked. All must have valid field names.
fn data_files(element: &Dir) -> Result<Vec<CString>, Error> {
    let found = match Contents::of(element) {
        // Another worker, which has locked the element after a purge, has removed it.
        Err(Errno::NOENT) => Contents::default(),
        found => found.map_err(Error::on("list", || element.path()))?,
    };
    if !found.locked {
        return Err(Error::NotLocked { path: element.path().to_owned() });
    }
    let is_field = |file: &&CString| file.to_str().is_ok_and(is_field_name);
    match found.directory.iter().chain(found.files.iter().filter(|file| !is_field(file))).next() {
        Some(foreign) => Err(Error::Foreign { path: element.path_of(foreign) }),
        None => Ok(found.files),
    }
}

/// Deletes the files and the lock of an element. Files that another process has deleted are not an error.
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

/// The contents of an element's directory.
#[derive(Default)]
struct Contents {
    /// Everything except directories.
    files: Vec<CString>,
    locked: bool,
    /// A directory other than the lock, if there is one.
    directory: Option<CString>,
}

impl Contents {
    /// Lists a directory that was opened for listing.
    fn of(element: &Dir) -> Result<Self, Errno> {
        let mut found = Self::default();
        let mut unknown = Vec::new();
        element.list(|file, file_type| match file_type {
            _ if file == LOCKED => found.locked = true,
            FileType::Directory => found.directory = Some(file.to_owned()),
            FileType::Unknown => unknown.push(file.to_owned()),
            _ => found.files.push(file.to_owned()),
        })?;
        // Some file systems do not report types in a listing.
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
