use std::{ffi::CString, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rustix::{fs::Mode, io::Errno};

use super::layout::{Normal, TEMPORARY, take_apart};
use crate::dirq::{
    Element, Error, Name,
    blocking::Span,
    fs::{Folder, Listed},
    name::Entry,
    root::{Top, Tries, View},
};

impl Normal {
    /// How long it takes to add this element.
    pub(super) fn span_of_add(&self, element: &Element) -> Span {
        match self.insertion.has_room() {
            true => Span::of_data(element.iter().map(|(_, value)| value.len()).sum()),
            false => Span::Long,
        }
    }

    pub(super) fn add(&self, element: Element) -> Result<Name, Error> {
        let files = self.schema()?.encode(element)?;
        let mut way = Way::new(&self.top);
        let draft = self.write(&mut way, &files)?;
        let name = self.finish(&mut way, draft, &files)?;
        self.top.sync_names(&[name])?;
        Ok(name)
    }

    /// Adds the elements. Until all are written none is added, and where one can't be written none is.
    pub(super) fn add_many(&self, elements: Vec<Element>) -> Result<Vec<Name>, Error> {
        let schema = self.schema()?;
        let encode = |element| schema.encode(element);
        let encoded: Vec<_> = elements.into_iter().map(encode).collect::<Result<_, _>>()?;
        let mut way = Way::new(&self.top);
        let write = |files| Ok((self.write(&mut way, files)?, files));
        let written: Vec<_> = encoded.iter().map(write).collect::<Result<_, Error>>()?;
        let mut names = Vec::with_capacity(written.len());
        for (draft, files) in written {
            match self.finish(&mut way, draft, files) {
                Ok(name) => names.push(name),
                Err(error) => return Err(Error::behind(error, names)),
            }
        }
        self.top.sync_names(&names)?;
        Ok(names)
    }

    /// Writes the files of an element into a directory of their own, in `temporary`.
    fn write<'a>(&'a self, way: &mut Way<'a>, files: &Files) -> Result<Draft, Error> {
        let umask = self.top.umask;
        let mut tries = Tries::of("add to");
        loop {
            let parent = match &way.temporary {
                Some(folder) => folder.clone(),
                None => way.temporary.insert(self.side(&mut way.view, TEMPORARY)?).clone(),
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
                Err(Errno::NOENT) => *way = Way::new(&self.top),
                Err(error) => return Err(Error::io("make", parent.of(name.c_str()), error)),
            }
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// Makes an element of a draft of these files.
    fn finish<'a>(
        &'a self,
        way: &mut Way<'a>,
        mut draft: Draft,
        files: &Files,
    ) -> Result<Name, Error> {
        let mut tries = Tries::of("add to");
        loop {
            let (directory, folder) = self.last(way)?;
            let name = Name { directory, element: self.top.stamps.next() };
            let element = Entry::element(name.element);
            match draft.parent.rename(draft.name.c_str(), &folder, element.c_str()) {
                Ok(()) => {
                    draft.done = true;
                    return Ok(name);
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(Errno::NOENT) => match draft.parent.stat(draft.name.c_str()) {
                    // It is the directory for new elements that is gone.
                    Ok(_) => {
                        self.insertion.forget();
                        *way = Way::new(&self.top);
                    }
                    // A purge took it for one whose writer died.
                    Err(_) => draft = self.write(way, files)?,
                },
                Err(error) => return Err(Error::io("add", self.top.path_of(&name), error)),
            }
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// The directory for one more element.
    fn last<'a>(&'a self, way: &mut Way<'a>) -> Result<(u32, Arc<Folder>), Error> {
        let mut tries = Tries::of("add to");
        loop {
            let directory = self.insertion.directory(&self.top, &way.view)?;
            if let Some((last, folder)) = &way.last
                && *last == directory
            {
                return Ok((directory, folder.clone()));
            }
            if let Some(folder) = way.view.folder(directory)? {
                way.last = Some((directory, folder.clone()));
                return Ok((directory, folder));
            }
            self.insertion.forget();
            *way = Way::new(&self.top);
            tries.again(|| self.top.path().to_owned())?;
        }
    }
}

/// The files of an element, by the names of its fields.
type Files = Vec<(String, Bytes)>;

/// The directories through which new elements come in, opened once for all of a call.
struct Way<'a> {
    view: View<'a>,
    temporary: Option<Arc<Folder>>,
    last: Option<(u32, Arc<Folder>)>,
}

impl<'a> Way<'a> {
    fn new(top: &'a Top) -> Self {
        Self { view: top.view(), temporary: None, last: None }
    }
}

/// An element that is written, and not yet one. Dropped as such, it leaves nothing behind.
struct Draft {
    parent: Arc<Folder>,
    name: Entry,
    done: bool,
}

impl Draft {
    fn fill(&self, files: &Files, umask: Option<Mode>, sync: bool) -> Result<(), (Errno, PathBuf)> {
        let element = self.parent.enter(self.name.c_str(), Listed::No);
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
