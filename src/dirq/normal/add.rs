//! Adding elements to a normal queue: they are written in `temporary`, and renamed to their place when they are
//! complete.

use std::{ffi::CString, path::PathBuf, sync::Arc};

use rustix::io::Errno;

use super::{
    layout::{Files, Normal, TEMPORARY},
    remove::remove_element_dir,
};
use crate::dirq::{
    Element, Error, Name,
    add::{Add, Group},
    blocking::Work,
    file_name::FileName,
    fs::{Dir, Mode, NewFile, OpenFor, file_id, is_out_of_file_descriptors},
    retry_budget::RetryBudget,
    root::{Opener, Root, Unpublished},
};

impl Normal {
    /// Returns the directory for one more element.
    fn current_directory<'a>(&'a self, dirs: &mut AddDirs<'a>) -> Result<(u32, Arc<Dir>), Error> {
        let mut retries = RetryBudget::of("add to");
        loop {
            let directory = self.rotation.directory(&self.root, &dirs.opener)?;
            if let Some((current, dir)) = &dirs.current
                && *current == directory
            {
                return Ok((directory, dir.clone()));
            }
            if let Some(dir) = dirs.opener.open(directory)? {
                dirs.current = Some((directory, dir.clone()));
                return Ok((directory, dir));
            }
            // The directory was removed since it was chosen.
            self.rotation.reset();
            *dirs = AddDirs::new(&self.root);
            retries.spend(|| self.root.path().to_owned())?;
        }
    }
}

impl Add for Normal {
    type Content = Files;
    type Written = TempElement;
    type Dirs<'a> = AddDirs<'a>;

    fn group(&self) -> &Group<Files> {
        &self.sync_group
    }

    fn encoder(&self) -> Result<impl Fn(Element) -> Result<Files, Error>, Error> {
        let schema = self.schema()?;
        Ok(|element| schema.encode(element))
    }

    fn work_for_add(&self, len: usize) -> Work {
        // Without an allowance, the add counts a directory, which takes longer the fuller it is.
        match self.rotation.has_allowance() {
            true => Work::for_add(&self.root, len),
            false => Work::Long,
        }
    }

    fn dirs(&self) -> AddDirs<'_> {
        AddDirs::new(&self.root)
    }

    /// The open files of an element are its fields and its directory.
    fn max_open_files(elements: &[Files]) -> usize {
        let most = elements.iter().map(|files| files.len() + 1).max();
        most.unwrap_or(1).min(Root::MAX_OPEN_FILES)
    }

    /// Writes the files of an element into a new directory in `temporary`.
    fn write<'a>(&'a self, dirs: &mut AddDirs<'a>, files: &Files) -> Result<TempElement, Error> {
        let umask = self.root.umask;
        for (_, data) in files {
            self.root.check_size(data.len() as u64, || self.root.path().to_owned())?;
        }
        let mut retries = RetryBudget::of("add to");
        loop {
            let parent = match &dirs.temporary {
                Some(dir) => dir.clone(),
                None => dirs
                    .temporary
                    .insert(self.root.open_or_make_all(&mut dirs.opener, TEMPORARY)?)
                    .clone(),
            };
            let name = FileName::element(self.root.names.next());
            match parent.mkdir(name.c_str(), umask) {
                Ok(()) => {
                    let mut temp =
                        TempElement { parent, name, id: None, published: false, open: None };
                    match temp.fill(files, umask, self.root.sync) {
                        Ok(()) => return Ok(temp),
                        // Other implementations purge directories that they find empty, however recent they are.
                        Err((Errno::NOENT, _)) => {}
                        Err((error, path)) => return Err(Error::io("write", path, error)),
                    }
                }
                // Another process has the name or, over NFS, a repeated request of this call: the next one is tried.
                Err(Errno::EXIST) => {}
                // `temporary` was removed, and is created again.
                Err(Errno::NOENT) => *dirs = AddDirs::new(&self.root),
                Err(error) => return Err(Error::io("create", parent.path_of(name.c_str()), error)),
            }
            retries.spend(|| self.root.path().to_owned())?;
        }
    }

    fn publish<'a>(
        &'a self,
        dirs: &mut AddDirs<'a>,
        mut temp: TempElement,
        files: &Files,
    ) -> Result<Name, Error> {
        let mut retries = RetryBudget::of("add to");
        loop {
            let (directory, dir) = self.current_directory(dirs)?;
            let name = Name { directory, element: self.root.names.next() };
            let element = FileName::element(name.element);
            // The rename would replace an empty directory, but elements are never empty: so either the name is free, or
            // the rename fails.
            match temp.parent.rename(temp.name.c_str(), &dir, element.c_str()) {
                Ok(()) => {
                    temp.published = true;
                    return Ok(name);
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match temp.parent.stat(temp.name.c_str()) {
                    // The directory for new elements is gone.
                    Ok(_) => {
                        self.rotation.reset();
                        *dirs = AddDirs::new(&self.root);
                    }
                    // Over NFS, an answer may be lost and the request repeated: then the element is already in its
                    // place.
                    Err(_)
                        if dir
                            .stat(element.c_str())
                            .is_ok_and(|stat| temp.id == Some(file_id(&stat))) =>
                    {
                        temp.published = true;
                        return Ok(name);
                    }
                    // A purge took it for the leftover of a crashed writer.
                    Err(Errno::NOENT) => {
                        temp = self.write(dirs, files)?;
                        temp.sync()?;
                    }
                    Err(error) => return Err(Error::io("add", self.root.path_of(&name), error)),
                },
                Err(error) => return Err(Error::io("add", self.root.path_of(&name), error)),
            }
            retries.spend(|| self.root.path().to_owned())?;
        }
    }
}

/// Syncs the files of an element, so that they survive a crash of the machine, and closes them.
fn sync_all(element: &Dir, files: &mut Vec<(NewFile, CString)>) -> Result<(), (Errno, PathBuf)> {
    files
        .drain(..)
        .try_for_each(|(file, name)| file.sync().map_err(|error| (error, element.path_of(&name))))
}

/// The directories needed by an add, opened once per call.
pub(in crate::dirq) struct AddDirs<'a> {
    opener: Opener<'a>,
    temporary: Option<Arc<Dir>>,
    current: Option<(u32, Arc<Dir>)>,
}

impl<'a> AddDirs<'a> {
    fn new(root: &'a Root) -> Self {
        Self { opener: root.opener(), temporary: None, current: None }
    }
}

/// An element's directory in `temporary`. Dropping it before it is published removes it.
pub(in crate::dirq) struct TempElement {
    parent: Arc<Dir>,
    name: FileName,
    /// Device and inode, which identify the directory after a rename.
    id: Option<(u64, u64)>,
    published: bool,
    /// The open directory and files that are still to be synced.
    open: Option<(Dir, Vec<(NewFile, CString)>)>,
}

impl TempElement {
    fn fill(
        &mut self,
        files: &Files,
        umask: Option<Mode>,
        sync: bool,
    ) -> Result<(), (Errno, PathBuf)> {
        let element = self.parent.open_subdir(self.name.c_str(), OpenFor::Traversal);
        let element = element.map_err(|error| (error, self.parent.path_of(self.name.c_str())))?;
        self.id = Some(element.id().map_err(|error| (error, element.path().to_owned()))?);
        let mut open = Vec::new();
        for (field, data) in files {
            let file = CString::new(field.as_str())
                .expect("a field's name consists of letters and digits");
            let create = || element.create(&file, data, umask, sync);
            // The directory of the element is open, too.
            if open.len() + 1 == Root::MAX_OPEN_FILES {
                sync_all(&element, &mut open)?;
            }
            let created = match create() {
                // Syncing closes the open files, which frees descriptors.
                Err(error) if is_out_of_file_descriptors(error) && !open.is_empty() => {
                    sync_all(&element, &mut open)?;
                    create()
                }
                created => created,
            };
            let created = created.map_err(|error| (error, element.path_of(&file)))?;
            open.extend(created.map(|created| (created, file)));
        }
        self.open = sync.then_some((element, open));
        Ok(())
    }
}

impl Unpublished for TempElement {
    fn sync(&mut self) -> Result<(), Error> {
        let Some((element, mut files)) = self.open.take() else { return Ok(()) };
        sync_all(&element, &mut files).map_err(|(error, path)| Error::io("write", path, error))?;
        element.sync().map_err(Error::on("write", || element.path()))
    }
}

impl Drop for TempElement {
    fn drop(&mut self) {
        if !self.published {
            // On failure the purge removes it later.
            let _ = remove_element_dir(&self.parent, self.name.c_str());
        }
    }
}
