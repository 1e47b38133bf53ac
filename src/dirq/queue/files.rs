use std::{
    ffi::{CStr, CString},
    path::PathBuf,
    rc::Rc,
};

use bytes::Bytes;
use rustix::{
    fs::{FileType, Mode},
    io::Errno,
};

use super::insertion::Insertion;
use crate::dirq::{
    Element, Error, Name, Purge, PurgeReport, Schema,
    folder::Folder,
    name::{Entry, element_of},
    protocol::Protocol,
    purge::is_older,
    schema::is_field_name,
    top::{Top, Tries},
};

/// The directory of a queue of elements with fields.
///
/// 1. An element `NNNNNNNN/NAME` is a directory with a file for each field, and complete from its first moment:
///    it is written in `temporary` and renamed.
/// 2. It is locked as long as a directory `locked` is in it.
/// 3. It leaves by a rename into `obsolete`, where it is taken apart.
#[derive(Debug)]
pub(in crate::dirq) struct Normal {
    pub(super) top: Top,
    pub(super) schema: Option<Schema>,
    pub(super) insertion: Insertion,
}

pub(super) const TEMPORARY: &str = "temporary";
pub(super) const OBSOLETE: &str = "obsolete";
const LOCKED: &CStr = c"locked";

impl Normal {
    /// Adds the elements. Until all are written none is added, and where one can't be written none is.
    pub(super) fn add(&self, elements: impl Iterator<Item = Element>) -> Result<Vec<Name>, Error> {
        let schema = self.schema()?;
        let encoded: Vec<_> =
            elements.map(|element| schema.encode(element)).collect::<Result<_, _>>()?;
        let mut temporary = None;
        let write = |files: Files| Ok((self.write(&mut temporary, &files)?, files));
        let written: Vec<_> = encoded.into_iter().map(write).collect::<Result<_, Error>>()?;
        let mut name = |(mut draft, files)| {
            let mut tries = Tries::of("add to");
            loop {
                if let Some(name) = self.finish(draft)? {
                    return Ok(name);
                }
                // A purge took it for one whose writer died.
                tries.again(|| self.top.path().to_owned())?;
                draft = self.write(&mut temporary, &files)?;
            }
        };
        let mut names = Vec::with_capacity(written.len());
        for draft in written {
            match name(draft) {
                Ok(name) => names.push(name),
                Err(error) => return Err(Error::behind(error, names)),
            }
        }
        self.top.sync_names(&names)?;
        Ok(names)
    }

    /// Writes the files of an element into a directory of their own, in `temporary` if that still exists.
    fn write(&self, temporary: &mut Option<Rc<Folder>>, files: &Files) -> Result<Draft, Error> {
        let umask = self.top.umask;
        let mut tries = Tries::of("add to");
        loop {
            let parent = match temporary {
                Some(folder) => folder.clone(),
                None => temporary.insert(Rc::new(self.side(TEMPORARY)?)).clone(),
            };
            let name = Entry::element(self.top.stamps.next());
            match parent.mkdir(name.c_str(), umask) {
                Ok(()) => {
                    let draft = Draft { parent, name, done: false };
                    match draft.fill(files, umask, self.top.sync) {
                        Ok(()) => return Ok(draft),
                        // Other implementations purge what they find empty, however young it is.
                        Err((Errno::NOENT, _)) => {}
                        Err((error, path)) => return Err(Error::io("write", path, error)),
                    }
                }
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => *temporary = None,
                Err(error) => return Err(Error::io("make", parent.of(name.c_str()), error)),
            }
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// Makes an element of a draft; none where the draft is gone.
    fn finish(&self, mut draft: Draft) -> Result<Option<Name>, Error> {
        let mut tries = Tries::of("add to");
        loop {
            let (directory, folder) = self.insertion.folder(&self.top)?;
            let name = Name { directory, element: self.top.stamps.next() };
            let element = Entry::element(name.element);
            match draft.parent.rename(draft.name.c_str(), &folder, element.c_str()) {
                Ok(()) => {
                    draft.done = true;
                    return Ok(Some(name));
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match draft.parent.stat(draft.name.c_str()) {
                    // It is the directory for new elements that is gone.
                    Ok(_) => self.insertion.forget(),
                    Err(_) => return Ok(None),
                },
                Err(error) => return Err(Error::io("add", self.top.path_of(&name), error)),
            }
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// `temporary` or `obsolete`, which it makes if need be.
    fn side(&self, name: &str) -> Result<Folder, Error> {
        let mut tries = Tries::of("make");
        loop {
            if let Some(folder) = self.top.open(name)? {
                return Ok(folder);
            }
            self.top.make_named(name)?;
            tries.again(|| self.top.path().join(name))?;
        }
    }

    /// The directory of an element, and the one it is in; none where it is gone.
    fn enter(&self, name: &Name) -> Result<Option<(Folder, Folder)>, Error> {
        let Some(parent) = self.top.folder(name.directory)? else { return Ok(None) };
        match parent.enter(Entry::element(name.element).c_str()) {
            Ok(element) => Ok(Some((parent, element))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(Error::Foreign { path: self.top.path_of(name) })
            }
            Err(error) => Err(Error::io("open", self.top.path_of(name), error)),
        }
    }

    /// The same of an element that is locked.
    fn enter_locked(&self, name: &Name) -> Result<(Folder, Folder), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let (parent, element) = self.enter(name)?.ok_or_else(not_locked)?;
        match element.stat(LOCKED) {
            Ok(_) => Ok((parent, element)),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", element.of(LOCKED), error)),
        }
    }

    /// Locks an element, and returns its directory; none where somebody else was quicker.
    fn lock_in(&self, name: &Name) -> Result<Option<Folder>, Error> {
        let Some((parent, element)) = self.enter(name)? else { return Ok(None) };
        match element.mkdir(LOCKED, self.top.umask) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io("lock", element.path(), error)),
        }
        // Who removes it may just have moved it away, and then waits for it to be empty.
        match parent.stat(Entry::element(name.element).c_str()) {
            Ok(_) => Ok(Some(element)),
            Err(error) => {
                let _ = element.rmdir(LOCKED);
                match error {
                    Errno::NOENT => Ok(None),
                    error => Err(Error::io("lock", element.path(), error)),
                }
            }
        }
    }

    fn read(&self, schema: &Schema, element: &Folder) -> Result<Element, Error> {
        schema.decode(element.path(), |field| {
            let file = CString::new(field).expect("a field's name is of letters and digits");
            match element.read(&file) {
                Ok(data) => Ok(Some(data)),
                Err(Errno::NOENT) => Ok(None),
                Err(Errno::LOOP | Errno::INVAL) => Err(Error::Foreign { path: element.of(&file) }),
                Err(error) => Err(Error::io("read", element.of(&file), error)),
            }
        })
    }

    fn schema(&self) -> Result<&Schema, Error> {
        self.schema.as_ref().ok_or_else(|| Error::NoSchema { path: self.top.path().to_owned() })
    }

    /// Removes what died on its way in or out.
    fn purge_side(&self, side: &str, oldest: i128) -> Result<u64, Error> {
        let Some(folder) = self.top.open(side)? else { return Ok(0) };
        let mut left = Vec::new();
        let listed = folder.list(|name, _| left.extend(element_of(name.to_bytes())));
        match listed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("list", folder.path(), error)),
        }
        let mut purged = 0;
        for element in left {
            let element = Entry::element(element);
            let name = element.c_str();
            match folder.stat(name) {
                Ok(stat) if is_older(&stat, oldest) => {}
                Ok(_) | Err(Errno::NOENT) => continue,
                Err(error) => return Err(Error::io("purge", folder.of(name), error)),
            }
            match take_apart(&folder, name) {
                Ok(()) => purged += 1,
                // It is gone, or is not as the format has it.
                Err(
                    Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP,
                ) => {}
                Err(error) => return Err(Error::io("purge", folder.of(name), error)),
            }
        }
        Ok(purged)
    }

    fn purge_locks(&self, oldest: i128) -> Result<u64, Error> {
        let mut purged = 0;
        for directory in self.top.directories()? {
            let names = self.elements(directory)?;
            let folder = match self.top.folder(directory) {
                Ok(Some(folder)) => folder,
                Ok(None) | Err(Error::Foreign { .. }) => continue,
                Err(error) => return Err(error),
            };
            for name in names {
                let element = Entry::element(name.element);
                let unlocked = match folder.stat(element.c_str()) {
                    Ok(stat) if is_older(&stat, oldest) => {
                        folder.enter(element.c_str()).and_then(|element| element.rmdir(LOCKED))
                    }
                    Ok(_) => continue,
                    Err(error) => Err(error),
                };
                match unlocked {
                    Ok(()) => purged += 1,
                    // It is not locked, is gone, or is no element.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => {
                        return Err(Error::io("unlock", self.top.path_of(&name), error));
                    }
                }
            }
        }
        Ok(purged)
    }
}

impl Protocol for Normal {
    type Payload = Element;

    fn top(&self) -> &Top {
        &self.top
    }

    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.top.elements(directory, FileType::Directory)
    }

    fn count(&self) -> Result<u64, Error> {
        self.top.count(FileType::Directory)
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        self.lock_in(name).map(|locked| locked.is_some())
    }

    fn take(&self, name: &Name) -> Result<Option<Element>, Error> {
        let schema = self.schema()?;
        let Some(element) = self.lock_in(name)? else { return Ok(None) };
        match self.read(schema, &element) {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                // The first error is the one to tell.
                let _ = element.rmdir(LOCKED);
                Err(error)
            }
        }
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let (_, element) = self.enter(name)?.ok_or_else(not_locked)?;
        match element.rmdir(LOCKED) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("unlock", element.path(), error)),
        }
    }

    fn get(&self, name: &Name) -> Result<Element, Error> {
        let schema = self.schema()?;
        let (_, element) = self.enter_locked(name)?;
        self.read(schema, &element)
    }

    fn peek(&self, name: &Name) -> Result<Option<Element>, Error> {
        let schema = self.schema()?;
        let Some((parent, element)) = self.enter(name)? else { return Ok(None) };
        match self.read(schema, &element) {
            Ok(read) => Ok(Some(read)),
            // Somebody removed it meanwhile.
            Err(Error::MissingFile { .. })
                if parent.stat(Entry::element(name.element).c_str()).is_err() =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let (parent, element) = self.enter_locked(name)?;
        let entry = Entry::element(name.element);
        // Before it leaves its place: what can't be taken apart stays, and stays locked.
        let files = data_files(&element)?;
        let mut obsolete = self.side(OBSOLETE)?;
        let mut tries = Tries::of("remove");
        let moved = loop {
            let moved = Entry::element(self.top.stamps.next());
            match parent.rename(entry.c_str(), &obsolete, moved.c_str()) {
                Ok(()) => break moved,
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match parent.stat(entry.c_str()) {
                    Ok(_) => obsolete = self.side(OBSOLETE)?,
                    // Somebody whose lock was purged removed it after all.
                    Err(_) => return Ok(()),
                },
                Err(error) => return Err(Error::io("remove", element.path(), error)),
            }
            tries.again(|| element.path().to_owned())?;
        };
        loop {
            empty(&element, &files).map_err(|(error, file)| {
                Error::io("remove", obsolete.of(moved.c_str()).join(file), error)
            })?;
            match obsolete.rmdir(moved.c_str()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // Somebody was about to lock it when it moved, and locked it here.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(Error::io("remove", obsolete.of(moved.c_str()), error)),
            }
            tries.again(|| obsolete.of(moved.c_str()))?;
        }
    }

    fn renew(&self, name: &Name) -> Result<(), Error> {
        self.touch(name)?;
        // After it, as a purge may have taken the lock until then.
        self.enter_locked(name).map(drop)
    }

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let ages = purge.start();
        let mut report = PurgeReport::default();
        self.top.remove_empty(&mut report)?;
        if let Some(oldest) = ages.temporary {
            report.temporary += self.purge_side(TEMPORARY, oldest)?;
            report.temporary += self.purge_side(OBSOLETE, oldest)?;
        }
        if let Some(oldest) = ages.lock {
            report.locks += self.purge_locks(oldest)?;
        }
        Ok(report)
    }
}

/// The files of an element, by the names of its fields.
type Files = Vec<(String, Bytes)>;

/// An element that is written, and not yet one. Dropped as such, it leaves nothing behind.
struct Draft {
    parent: Rc<Folder>,
    name: Entry,
    done: bool,
}

impl Draft {
    fn fill(&self, files: &Files, umask: Option<Mode>, sync: bool) -> Result<(), (Errno, PathBuf)> {
        let element = self.parent.enter(self.name.c_str());
        let element = element.map_err(|error| (error, self.parent.of(self.name.c_str())))?;
        for (field, data) in files {
            let file =
                CString::new(field.as_str()).expect("a field's name is of letters and digits");
            let created = element.create(&file, data, umask, sync);
            created.map_err(|error| (error, element.of(&file)))?;
        }
        match sync {
            true => element.sync().map_err(|error| (error, element.path().to_owned())),
            false => Ok(()),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // What can't be removed now, the purge takes.
            let _ = take_apart(&self.parent, self.name.c_str());
        }
    }
}

/// Removes the directory of an element that died on its way, with all files in it.
fn take_apart(parent: &Folder, name: &CStr) -> Result<(), Errno> {
    let element = parent.enter(name)?;
    let mut files = Vec::new();
    element.list(|file, file_type| {
        if file_type != FileType::Directory {
            files.push(file.to_owned());
        }
    })?;
    empty(&element, &files).map_err(|(error, _)| error)?;
    parent.rmdir(name)
}

/// Removes the files and the lock of an element. What others removed is no error.
fn empty<'a>(element: &Folder, files: &'a [CString]) -> Result<(), (Errno, &'a str)> {
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

/// The files of an element, which must have the names of fields.
fn data_files(element: &Folder) -> Result<Vec<CString>, Error> {
    let mut files = Vec::new();
    let mut foreign = None;
    let listed = element.list(|file, _| match file.to_str() {
        Ok(name) if is_field_name(name) => files.push(file.to_owned()),
        _ if file == LOCKED => {}
        _ => foreign = Some(element.of(file)),
    });
    listed.map_err(Error::on("list", || element.path()))?;
    match foreign {
        Some(path) => Err(Error::Foreign { path }),
        None => Ok(files),
    }
}
