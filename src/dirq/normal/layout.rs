use std::{
    ffi::{CStr, CString},
    sync::Arc,
};

use rustix::{fs::FileType, io::Errno};

use super::rotation::Insertion;
use crate::dirq::{
    Element, Error, Name, Purge, PurgeReport, Schema,
    fs::{Folder, Listed},
    name::{Entry, element_of},
    protocol::Protocol,
    purge::is_older,
    root::{Top, Tries, View},
    schema::is_field_name,
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
    /// `temporary` or `obsolete`, which it makes if need be.
    pub(super) fn side<'a>(
        &'a self,
        view: &mut View<'a>,
        name: &str,
    ) -> Result<Arc<Folder>, Error> {
        let mut tries = Tries::of("make");
        loop {
            if let Some(folder) = view.open(name)? {
                return Ok(folder);
            }
            self.top.make_named(name)?;
            *view = self.top.view();
            tries.again(|| self.top.path().join(name))?;
        }
    }

    /// The directory of an element, and the one it is in; none where it is gone.
    fn enter(&self, view: &View<'_>, name: &Name, listed: Listed) -> Result<Option<Place>, Error> {
        let Some(parent) = view.folder(name.directory)? else { return Ok(None) };
        match parent.enter(Entry::element(name.element).c_str(), listed) {
            Ok(element) => Ok(Some(Place { parent, element })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(Error::Foreign { path: self.top.path_of(name) })
            }
            Err(error) => Err(Error::io("open", self.top.path_of(name), error)),
        }
    }

    /// The directory of an element that is locked.
    fn enter_locked(&self, name: &Name) -> Result<Folder, Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let place = self.enter(&self.top.view(), name, Listed::No)?.ok_or_else(not_locked)?;
        match place.element.stat(LOCKED) {
            Ok(_) => Ok(place.element),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", place.element.of(LOCKED), error)),
        }
    }

    /// Locks an element; none where somebody else was quicker.
    fn lock_in(
        &self,
        view: &View<'_>,
        name: &Name,
        listed: Listed,
    ) -> Result<Option<Place>, Error> {
        let Some(place) = self.enter(view, name, listed)? else { return Ok(None) };
        let Place { parent, element } = &place;
        match element.mkdir(LOCKED, self.top.umask) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io("lock", element.path(), error)),
        }
        // Who removes it may just have moved it away, and then waits for it to be empty.
        match parent.stat(Entry::element(name.element).c_str()) {
            Ok(_) => Ok(Some(place)),
            Err(error) => {
                let _ = element.rmdir(LOCKED);
                match error {
                    Errno::NOENT => Ok(None),
                    error => Err(Error::io("lock", element.path(), error)),
                }
            }
        }
    }

    /// Locks an element and reads it.
    fn lock_and_read(
        &self,
        view: &View<'_>,
        name: &Name,
        listed: Listed,
    ) -> Result<Option<(Place, Element)>, Error> {
        let schema = self.schema()?;
        let Some(place) = self.lock_in(view, name, listed)? else { return Ok(None) };
        match self.read(schema, &place.element) {
            Ok(read) => Ok(Some((place, read))),
            Err(error) => {
                // The first error is the one to tell.
                let _ = place.element.rmdir(LOCKED);
                Err(error)
            }
        }
    }

    /// Removes an element that is locked and was entered to be listed.
    fn remove_in<'a>(
        &'a self,
        view: &mut View<'a>,
        name: &Name,
        place: &Place,
    ) -> Result<(), Error> {
        let Place { parent, element } = place;
        let entry = Entry::element(name.element);
        // Before it leaves its place: what can't be taken apart stays, and stays locked.
        let files = data_files(element)?;
        let mut obsolete = self.side(view, OBSOLETE)?;
        let mut tries = Tries::of("remove");
        let moved = loop {
            let moved = Entry::element(self.top.stamps.next());
            match parent.rename(entry.c_str(), &obsolete, moved.c_str()) {
                Ok(()) => break moved,
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match parent.stat(entry.c_str()) {
                    Ok(_) => {
                        *view = self.top.view();
                        obsolete = self.side(view, OBSOLETE)?;
                    }
                    // Somebody whose lock was purged removed it after all.
                    Err(_) => return Ok(()),
                },
                Err(error) => return Err(Error::io("remove", element.path(), error)),
            }
            tries.again(|| element.path().to_owned())?;
        };
        loop {
            empty(element, &files).map_err(|(error, file)| {
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

    pub(super) fn schema(&self) -> Result<&Schema, Error> {
        self.schema.as_ref().ok_or_else(|| Error::NoSchema { path: self.top.path().to_owned() })
    }

    /// Removes what died on its way in or out.
    fn purge_side(&self, side: &str, oldest: i128) -> Result<u64, Error> {
        let Some(folder) = self.top.view().open(side)? else { return Ok(0) };
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
                    Ok(stat) if is_older(&stat, oldest) => folder
                        .enter(element.c_str(), Listed::No)
                        .and_then(|element| element.rmdir(LOCKED)),
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
        Ok(self.lock_in(&self.top.view(), name, Listed::No)?.is_some())
    }

    fn take(&self, name: &Name) -> Result<Option<Element>, Error> {
        let taken = self.lock_and_read(&self.top.view(), name, Listed::No)?;
        Ok(taken.map(|(_, element)| element))
    }

    fn dequeue(&self, name: &Name) -> Result<Option<Element>, Error> {
        let mut view = self.top.view();
        let taken = self.lock_and_read(&view, name, Listed::Yes)?;
        let Some((place, element)) = taken else { return Ok(None) };
        match self.remove_in(&mut view, name, &place) {
            Ok(()) => Ok(Some(element)),
            Err(error) => {
                // The first error is the one to tell.
                let _ = place.element.rmdir(LOCKED);
                Err(error)
            }
        }
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let place = self.enter(&self.top.view(), name, Listed::No)?.ok_or_else(not_locked)?;
        match place.element.rmdir(LOCKED) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("unlock", place.element.path(), error)),
        }
    }

    fn get(&self, name: &Name) -> Result<Element, Error> {
        let schema = self.schema()?;
        self.read(schema, &self.enter_locked(name)?)
    }

    fn peek(&self, name: &Name) -> Result<Option<Element>, Error> {
        let schema = self.schema()?;
        let Some(place) = self.enter(&self.top.view(), name, Listed::No)? else { return Ok(None) };
        match self.read(schema, &place.element) {
            Ok(read) => Ok(Some(read)),
            // Somebody removed it meanwhile.
            Err(Error::MissingFile { .. })
                if place.parent.stat(Entry::element(name.element).c_str()).is_err() =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let mut view = self.top.view();
        let place = self.enter(&view, name, Listed::Yes)?.ok_or_else(not_locked)?;
        self.remove_in(&mut view, name, &place)
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

/// Where an element is.
struct Place {
    parent: Arc<Folder>,
    element: Folder,
}

/// Removes the directory of an element that died on its way, with all files in it.
pub(super) fn take_apart(parent: &Folder, name: &CStr) -> Result<(), Errno> {
    let element = parent.enter(name, Listed::Yes)?;
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

/// The files of an element, which must be locked. They must have the names of fields.
fn data_files(element: &Folder) -> Result<Vec<CString>, Error> {
    let mut files = Vec::new();
    let mut locked = false;
    let mut foreign = None;
    let listed = element.list(|file, _| match file.to_str() {
        Ok(name) if is_field_name(name) => files.push(file.to_owned()),
        _ if file == LOCKED => locked = true,
        _ => foreign = Some(element.of(file)),
    });
    listed.map_err(Error::on("list", || element.path()))?;
    match foreign {
        _ if !locked => Err(Error::NotLocked { path: element.path().to_owned() }),
        Some(path) => Err(Error::Foreign { path }),
        None => Ok(files),
    }
}
