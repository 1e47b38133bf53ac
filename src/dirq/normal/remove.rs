//! How an element of a normal queue is removed: moved out of the way at once, and then taken apart.

use std::ffi::{CStr, CString};

use rustix::io::Errno;

use super::layout::{LOCKED, Normal, OBSOLETE, OpenElement};
use crate::dirq::{
    Error, Name,
    file_name::FileName,
    fs::{Dir, FileType, OpenFor},
    retry::RetryBudget,
    root::Opener,
    schema::is_field_name,
};

impl Normal {
    /// Removes an element that is locked and was entered to be listed.
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
        let mut obsolete = self.open_or_make(opener, OBSOLETE)?;
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
                        obsolete = self.open_or_make(opener, OBSOLETE)?;
                    }
                    // Somebody whose lock was purged removed it after all.
                    Err(_) => return Ok(()),
                },
                Err(error) => return Err(Error::io("remove", element.path(), error)),
            }
            retries.spend(|| element.path().to_owned())?;
        };
        loop {
            remove_files(element, &files).map_err(|(error, file)| {
                Error::io("remove", obsolete.path_of(moved.c_str()).join(file), error)
            })?;
            match obsolete.rmdir(moved.c_str()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // Somebody was about to lock it when it moved, and locked it here.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => {
                    return Err(Error::io("remove", obsolete.path_of(moved.c_str()), error));
                }
            }
            retries.spend(|| obsolete.path_of(moved.c_str()))?;
        }
    }
}

/// Removes the directory of an element that died on its way, with all files in it.
pub(super) fn remove_element_dir(parent: &Dir, name: &CStr) -> Result<(), Errno> {
    let element = parent.enter(name, OpenFor::Listing)?;
    let mut files = Vec::new();
    element.list(|file, file_type| {
        if file_type != FileType::Directory {
            files.push(file.to_owned());
        }
    })?;
    remove_files(&element, &files).map_err(|(error, _)| error)?;
    parent.rmdir(name)
}

/// The files of an element, which must be locked. They must have the names of fields.
fn data_files(element: &Dir) -> Result<Vec<CString>, Error> {
    let mut files = Vec::new();
    let mut locked = false;
    let mut foreign = None;
    let listed = element.list(|file, _| match file.to_str() {
        Ok(name) if is_field_name(name) => files.push(file.to_owned()),
        _ if file == LOCKED => locked = true,
        _ => foreign = Some(element.path_of(file)),
    });
    listed.map_err(Error::on("list", || element.path()))?;
    match foreign {
        _ if !locked => Err(Error::NotLocked { path: element.path().to_owned() }),
        Some(path) => Err(Error::Foreign { path }),
        None => Ok(files),
    }
}

/// Removes the files and the lock of an element. What others removed is no error.
fn remove_files<'a>(element: &Dir, files: &'a [CString]) -> Result<(), (Errno, &'a str)> {
    for file in files {
        match element.unlink(file) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err((error, file.to_str().unwrap_or_default())),
        }
    }
    match element.rmdir(LOCKED) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err((error, "locked")),
    }
}
