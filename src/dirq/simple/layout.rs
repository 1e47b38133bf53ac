use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fsync, lstat, open},
    io::Errno,
};

use crate::dirq::{
    Error, Name, Purge, PurgeReport,
    fs::{Folder, is_file, publish},
    name::{Entry, LOCK, TEMPORARY, element_of, seconds},
    protocol::Protocol,
    purge::{Ages, is_older},
    root::{Top, Tries},
};

/// The directory of a simple queue.
///
/// 1. An element `dir/NAME` is complete from its first moment: it is written as `dir/OTHER.tmp` and gets its
///    name by one step of the file system, which never replaces another.
/// 2. It is locked as long as `dir/NAME.lck`, a second link to it, exists. What is done under the lock goes
///    through that link.
/// 3. It leaves data first: without its lock, an element that is half removed could be locked once more.
#[derive(Debug)]
pub(in crate::dirq) struct Simple {
    pub(super) top: Top,
    /// Seconds.
    pub(super) granularity: u32,
}

impl Simple {
    pub(super) fn add(&self, body: &[u8]) -> Result<Name, Error> {
        let mut folder = None;
        let draft = self.write(&mut folder, body)?;
        let name = self.finish(&mut folder, draft, body)?;
        self.top.sync_names(&[name])?;
        Ok(name)
    }

    /// Adds an element of each body. Until all are written none is added, and where one can't be written
    /// none is.
    pub(super) fn add_many(&self, bodies: &[&[u8]]) -> Result<Vec<Name>, Error> {
        let mut folder = None;
        let write = |&body| Ok((self.write(&mut folder, body)?, body));
        let written: Vec<_> = bodies.iter().map(write).collect::<Result<_, Error>>()?;
        let mut names = Vec::with_capacity(written.len());
        for (draft, body) in written {
            match self.finish(&mut folder, draft, body) {
                Ok(name) => names.push(name),
                Err(error) => return Err(Error::behind(error, names)),
            }
        }
        self.top.sync_names(&names)?;
        Ok(names)
    }

    pub(super) fn add_path(&self, path: &Path) -> Result<Name, Error> {
        let failed = |operation| move |errno| Error::io(operation, path, errno);
        if !is_file(&lstat(path).map_err(failed("move"))?) {
            return Err(Error::Foreign { path: path.to_owned() });
        }
        if self.top.sync {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = open(path, flags, Mode::empty());
            file.and_then(fsync).map_err(failed("sync"))?;
        }
        let from = CString::new(path.as_os_str().as_bytes())
            .expect("a path that the kernel took has no zero in it");
        let mut tries = Tries::of("add to");
        loop {
            let folder = self.folder()?;
            if let Some(name) = self.publish(CWD, &from, &folder, || path.to_owned())? {
                self.top.sync_names(&[name])?;
                return Ok(name);
            }
            // Its directory is gone, or the file itself.
            lstat(path).map_err(failed("move"))?;
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// The path of what a locked element holds.
    pub(super) fn get_path(&self, name: &Name) -> Result<PathBuf, Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let folder = self.top.folder(name.directory)?.ok_or_else(not_locked)?;
        let lock = Entry::lock(name.element);
        match folder.stat(lock.c_str()) {
            Ok(stat) if is_file(&stat) => Ok(folder.of(lock.c_str())),
            Ok(_) => Err(Error::Foreign { path: folder.of(lock.c_str()) }),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", folder.of(lock.c_str()), error)),
        }
    }

    /// Writes a body under a name that is no element's, in `folder` if that still exists.
    fn write(&self, folder: &mut Option<Insertion>, body: &[u8]) -> Result<Draft, Error> {
        let mut tries = Tries::of("add to");
        loop {
            let insertion = match folder {
                Some(insertion) => insertion.clone(),
                None => folder.insert(self.folder()?).clone(),
            };
            let name = Entry::temporary(self.top.stamps.next());
            match insertion.folder.create(name.c_str(), body, self.top.umask, self.top.sync) {
                Ok(()) => return Ok(Draft { insertion, name: Some(name) }),
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => *folder = None,
                Err(error) => {
                    return Err(Error::io("write", insertion.folder.of(name.c_str()), error));
                }
            }
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// Makes an element of a draft of this body.
    fn finish(
        &self,
        folder: &mut Option<Insertion>,
        mut draft: Draft,
        body: &[u8],
    ) -> Result<Name, Error> {
        let mut tries = Tries::of("add to");
        loop {
            let to = &draft.insertion;
            let from = draft.name.as_ref().expect("a draft is finished once").c_str();
            let name = self.publish(&*to.folder, from, to, || to.folder.of(from))?;
            // It is either an element now or gone.
            draft.name = None;
            if let Some(name) = name {
                return Ok(name);
            }
            // A purge took it for one whose writer died.
            tries.again(|| self.top.path().to_owned())?;
            draft = self.write(folder, body)?;
        }
    }

    /// Gives the file `from` the name of a new element; none where it is gone, or the directory of elements.
    fn publish(
        &self,
        from_folder: impl AsFd,
        from: &CStr,
        to: &Insertion,
        path: impl Fn() -> PathBuf,
    ) -> Result<Option<Name>, Error> {
        let mut tries = Tries::of("name");
        loop {
            let element = self.top.stamps.next();
            match publish(&from_folder, from, &to.folder, Entry::element(element).c_str()) {
                Ok(()) => return Ok(Some(Name { directory: to.directory, element })),
                Err(Errno::EXIST) => tries.again(&path)?,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::XDEV) => {
                    let queue = self.top.path().to_owned();
                    return Err(Error::OtherFileSystem { from: path(), queue });
                }
                Err(error) => return Err(Error::io("move", path(), error)),
            }
        }
    }

    /// The directory for elements of now, which it makes if need be.
    fn folder(&self) -> Result<Insertion, Error> {
        let mut tries = Tries::of("add to");
        loop {
            let now = seconds(self.top.stamps.next());
            let directory = match self.granularity {
                0 => now,
                granularity => now - now % granularity,
            };
            if let Some(folder) = self.top.folder(directory)? {
                return Ok(Insertion { folder, directory });
            }
            self.top.make(directory)?;
            tries.again(|| self.top.path().to_owned())?;
        }
    }

    /// Locks an element, and looks at it through its lock; none where somebody else was quicker. Returns its
    /// directory, too.
    fn lock_and<T>(
        &self,
        name: &Name,
        look: impl FnOnce(&Folder, &CStr) -> Result<T, Errno>,
    ) -> Result<Option<(Arc<Folder>, T)>, Error> {
        let Some(folder) = self.top.folder(name.directory)? else { return Ok(None) };
        let (element, lock) = (Entry::element(name.element), Entry::lock(name.element));
        match folder.link(element.c_str(), lock.c_str()) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io("lock", folder.of(element.c_str()), error)),
        }
        let (touched, seen) = match folder.touch(element.c_str()) {
            // Until now the lock looked as old as the element, and a purge may have taken it away.
            Ok(()) => (true, look(&folder, lock.c_str())),
            Err(error) => (false, Err(error)),
        };
        let error = match seen {
            Ok(seen) => return Ok(Some((folder, seen))),
            // The next one to lock it may have done so already.
            Err(Errno::NOENT) if touched => return Ok(None),
            Err(error) => error,
        };
        // Where it is the element that is gone, as somebody removed it whose lock was purged, this is all that is
        // left of it.
        let _ = folder.unlink(lock.c_str());
        let path = folder.of(element.c_str());
        match error {
            Errno::NOENT => Ok(None),
            Errno::LOOP | Errno::INVAL => Err(Error::Foreign { path }),
            error => Err(Error::io("lock", path, error)),
        }
    }

    /// Locks an element and reads it.
    fn lock_and_read(&self, name: &Name) -> Result<Option<(Arc<Folder>, Bytes)>, Error> {
        self.lock_and(name, |folder, lock| Ok(folder.read(lock)?.into()))
    }

    fn read(&self, name: &Name, entry: &Entry) -> Result<Option<Bytes>, Error> {
        let Some(folder) = self.top.folder(name.directory)? else { return Ok(None) };
        let path = || folder.of(entry.c_str());
        match folder.read(entry.c_str()) {
            Ok(data) => Ok(Some(data.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::INVAL) => Err(Error::Foreign { path: path() }),
            Err(error) => Err(Error::io("read", path(), error)),
        }
    }

    fn purge_directory(
        &self,
        directory: u32,
        ages: &Ages,
        report: &mut PurgeReport,
    ) -> Result<(), Error> {
        let mut left = Vec::new();
        let listed = self.top.list(directory, |name, _| left.extend(beside(name)))?;
        let Some(folder) = listed else { return Ok(()) };
        for (element, side) in left {
            let (entry, oldest, removed) = match side {
                Side::Lock => (Entry::lock(element), ages.lock, &mut report.locks),
                Side::Draft => (Entry::temporary(element), ages.temporary, &mut report.temporary),
            };
            let name = entry.c_str();
            let Some(oldest) = oldest else { continue };
            let unlinked = match folder.stat(name) {
                Ok(stat) if is_older(&stat, oldest) => folder.unlink(name),
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            match unlinked {
                Ok(()) => *removed += 1,
                // It is gone, or a directory that only looks like one of these files.
                Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(Error::io("purge", folder.of(name), error)),
            }
        }
        Ok(())
    }
}

impl Protocol for Simple {
    type Payload = Bytes;

    fn top(&self) -> &Top {
        &self.top
    }

    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.top.elements(directory, FileType::RegularFile)
    }

    fn unlocked(&self, directory: u32) -> Result<Vec<Name>, Error> {
        let mut locked = HashSet::new();
        self.top.list(directory, |name, _| {
            if let Some((element, Side::Lock)) = beside(name) {
                locked.insert(element);
            }
        })?;
        let mut names = self.elements(directory)?;
        names.retain(|name| !locked.contains(&name.element));
        Ok(names)
    }

    fn count(&self) -> Result<u64, Error> {
        self.top.count(FileType::RegularFile)
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        self.lock_and(name, |folder, lock| match folder.stat(lock)? {
            stat if is_file(&stat) => Ok(()),
            _ => Err(Errno::INVAL),
        })
        .map(|locked| locked.is_some())
    }

    fn take(&self, name: &Name) -> Result<Option<Bytes>, Error> {
        Ok(self.lock_and_read(name)?.map(|(_, body)| body))
    }

    fn dequeue(&self, name: &Name) -> Result<Option<Bytes>, Error> {
        let Some((folder, body)) = self.lock_and_read(name)? else { return Ok(None) };
        remove(&folder, name).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = folder.unlink(Entry::lock(name.element).c_str());
        })?;
        Ok(Some(body))
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let folder = self.top.folder(name.directory)?.ok_or_else(not_locked)?;
        match folder.unlink(Entry::lock(name.element).c_str()) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("unlock", self.top.path_of(name), error)),
        }
    }

    fn get(&self, name: &Name) -> Result<Bytes, Error> {
        self.read(name, &Entry::lock(name.element))?
            .ok_or_else(|| Error::NotLocked { path: self.top.path_of(name) })
    }

    fn peek(&self, name: &Name) -> Result<Option<Bytes>, Error> {
        self.read(name, &Entry::element(name.element))
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.top.path_of(name) };
        let folder = self.top.folder(name.directory)?.ok_or_else(not_locked)?;
        let lock = Entry::lock(name.element);
        match folder.stat(lock.c_str()) {
            Ok(_) => remove(&folder, name),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", folder.of(lock.c_str()), error)),
        }
    }

    fn renew(&self, name: &Name) -> Result<(), Error> {
        self.touch(name)?;
        // After it, as a purge may have taken the lock until then.
        self.get_path(name).map(drop)
    }

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        let ages = purge.start();
        let mut report = PurgeReport::default();
        if ages.temporary.is_some() || ages.lock.is_some() {
            for directory in self.top.directories()? {
                self.purge_directory(directory, &ages, &mut report)?;
            }
        }
        self.top.remove_empty(&mut report)?;
        Ok(report)
    }
}

/// Removes an element that is locked.
fn remove(folder: &Folder, name: &Name) -> Result<(), Error> {
    for entry in [Entry::element(name.element), Entry::lock(name.element)] {
        match folder.unlink(entry.c_str()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("remove", folder.of(entry.c_str()), error)),
        }
    }
    Ok(())
}

/// A directory for new elements.
#[derive(Clone)]
struct Insertion {
    folder: Arc<Folder>,
    directory: u32,
}

/// A body that is written, and not yet an element. Dropped as such, it leaves nothing behind.
struct Draft {
    insertion: Insertion,
    name: Option<Entry>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // The purge takes what can't be removed now.
            let _ = self.insertion.folder.unlink(name.c_str());
        }
    }
}

/// What stands beside an element.
enum Side {
    Lock,
    Draft,
}

/// The name of the element beside which this file stands, if it does.
fn beside(name: &CStr) -> Option<(u64, Side)> {
    let (element, suffix) = name.to_bytes().split_at_checked(14)?;
    let element = element_of(element)?;
    match suffix {
        suffix if suffix == LOCK.as_bytes() => Some((element, Side::Lock)),
        suffix if suffix == TEMPORARY.as_bytes() => Some((element, Side::Draft)),
        _ => None,
    }
}
