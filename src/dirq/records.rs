//! Records of delivered elements: the number of deliveries, and the time of the next one.
//!
//! 1. Records are stored in a separate directory, whose name no implementation takes for a directory of elements: other
//!    implementations ignore it.
//! 2. A record is a symbolic link without an existing target. Its text is created, read and replaced atomically.
//! 3. The reason of a failed attempt is a file next to the record, because other releases of this library would not
//!    accept it in the record. Its content is replaced atomically, too.
//! 4. The records of dead letters, with their reasons, are moved to a directory of their own: each delivery changes the
//!    directory of the others, which is then listed again, and dead letters may be many. If an element has a record in
//!    both directories, because a process crashed in between, the one that is not in the directory of dead letters
//!    counts. There, a dead letter may also have its record: earlier builds wrote it, or its move failed.
//! 5. Both are written by the owner of the element's lock. Without their element, they have no meaning, and a purge
//!    removes them.

mod changes;

use std::{collections::HashSet, ffi::CStr, iter, sync::Arc};

use rustix::io::Errno;

use super::{
    Error, Name, PurgeReport,
    file_name::{FileName, RecordEntry},
    fs::{Dir, Mode, file_id, stat},
    record::Record,
    retry_budget::RetryBudget,
    root::Root,
};
use crate::engine::retries::MAX_REASON_LEN;

/// The records of a queue.
pub(super) struct Records {
    dir: Arc<Dir>,
    /// The directory of dead letters, if it exists.
    dead: Option<Arc<Dir>>,
    umask: Option<Mode>,
}

/// The elements with a record or a reason.
struct Listing {
    /// In order.
    names: Vec<Name>,
    with_reason: HashSet<Name>,
}

impl Records {
    // Not next to the elements: there, Perl's purge unlinks files with a dot in their names, and other files keep a
    // directory from being removed.
    const DIRECTORY: &str = "retries";

    /// The directory of dead letters in it.
    const DEAD: &CStr = c"dead";

    /// Returns `None` if the directory does not exist, because nothing has failed yet.
    pub(super) fn open(root: &Root) -> Result<Option<Self>, Error> {
        let opener = root.opener();
        let Some(dir) = opener.open_named(Self::DIRECTORY)? else { return Ok(None) };
        let dead = opener.open_below(&dir, Self::DEAD)?;
        Ok(Some(Self { dir, dead, umask: root.umask }))
    }

    /// Same as [`open_or_make`](Self::open_or_make), but returns `None` if the directories would have to be created for
    /// an element that is missing. The directory of the queue may be away, and another one may be in its place.
    pub(super) fn open_or_make_for(root: &Root, name: &Name) -> Result<Option<Self>, Error> {
        match Self::open_both(root)? {
            Some(records) => Ok(Some(records)),
            None if element_exists(root, name)? => Self::open_or_make(root).map(Some),
            None => Ok(None),
        }
    }

    /// Returns an error that [is missing](Error::is_missing) if the directory of the queue is away.
    pub(super) fn open_or_make(root: &Root) -> Result<Self, Error> {
        if let Some(records) = Self::open_both(root)? {
            return Ok(records);
        }
        let dir = root.open_or_make(&mut root.opener(), Self::DIRECTORY)?;
        // Without this directory, dead letters have their records next to the others.
        let made = dir.mkdir(Self::DEAD, root.umask);
        let dead = match made {
            Ok(()) | Err(Errno::EXIST) => root.opener().open_below(&dir, Self::DEAD)?,
            Err(_) => None,
        };
        Ok(Self { dir, dead, umask: root.umask })
    }

    /// Returns `None` if one of the directories does not exist.
    fn open_both(root: &Root) -> Result<Option<Self>, Error> {
        Ok(Self::open(root)?.filter(|records| records.dead.is_some()))
    }

    /// Returns all records, in the order of their elements' names. Reads each record on demand, so that a caller that
    /// needs few reads few.
    pub(super) fn iter(
        &self,
    ) -> Result<impl Iterator<Item = Result<(Name, Record), Error>> + '_, Error> {
        let read = |name| Some(self.get(&name).transpose()?.map(|record| (name, record)));
        Ok(self.listing()?.names.into_iter().filter_map(read))
    }

    /// Returns the dead letters whose elements exist, in the order of their names, with their attempts. The last item
    /// is true if there is a reason.
    pub(super) fn dead(&self, root: &Root) -> Result<Vec<(Name, u32, bool)>, Error> {
        let Listing { names, with_reason } = self.listing()?;
        let mut dead = Vec::new();
        for name in names {
            let Some(record) = self.get(&name)?.filter(Record::is_dead) else { continue };
            // Another implementation may have removed it.
            if element_exists(root, &name)? {
                dead.push((name, record.attempts, with_reason.contains(&name)));
            }
        }
        Ok(dead)
    }

    /// Returns `None` if there is no record, or something else has its name.
    pub(super) fn get(&self, name: &Name) -> Result<Option<Record>, Error> {
        let file = FileName::record(name.directory, name.element);
        for dir in self.dirs() {
            match dir.read_link(file.c_str()) {
                Ok(text) => return Ok(Record::parse(&text)),
                Err(Errno::NOENT) => {}
                Err(Errno::INVAL) => return Ok(None),
                Err(error) => return Err(io_error("read", dir, &file, error)),
            }
        }
        Ok(None)
    }

    /// Writes a record, replacing the old one.
    pub(super) fn put(&self, name: &Name, record: Record) -> Result<(), Error> {
        match &self.dead {
            // If the directory was removed, the record is still needed.
            Some(dead) if record.is_dead() => {
                self.put_dead(dead, name, record).or_else(|_| self.put_here(name, record))
            }
            _ => self.put_here(name, record),
        }
    }

    fn put_here(&self, name: &Name, record: Record) -> Result<(), Error> {
        let text = record.to_text();
        let file = FileName::record(name.directory, name.element);
        // Most records are the first of their element: then one call is enough.
        match self.dir.symlink(&text, file.c_str()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(io_error("write", &self.dir, &file, error)),
        }
        // A symbolic link cannot be changed in place. Renaming replaces it atomically, so that a record is never
        // missing.
        let draft = FileName::record_draft(name.directory, name.element);
        let create = |draft: &CStr| self.dir.symlink(&text, draft);
        self.replace(&self.dir, &file, &draft, create, || Ok(self.get(name)? == Some(record)))
    }

    /// Writes the record of a dead letter, and moves its reason.
    fn put_dead(&self, dead: &Arc<Dir>, name: &Name, record: Record) -> Result<(), Error> {
        let Name { directory, element } = *name;
        // First: a dead letter has its reason as soon as it is listed.
        let reason = FileName::reason(directory, element);
        match self.dir.rename(reason.c_str(), dead, reason.c_str()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io_error("move", &self.dir, &reason, error)),
        }
        let text = record.to_text();
        let file = FileName::record(directory, element);
        let draft = FileName::record_draft(directory, element);
        let create = |draft: &CStr| self.dir.symlink(&text, draft);
        let is_done = || Ok(dead.read_link(file.c_str()).is_ok_and(|found| found == text));
        self.replace(dead, &file, &draft, create, is_done)?;
        // Last: until then, the old record counts, so that the element has a record at each moment.
        unlink(&self.dir, &file)
    }

    /// Removes a record. The reason stays.
    pub(super) fn remove(&self, name: &Name) -> Result<(), Error> {
        self.unlink_everywhere(&FileName::record(name.directory, name.element))
    }

    /// Makes an element due at the time of `record`, if its record was that of a dead letter.
    pub(super) fn revive(&self, name: &Name, record: Record) -> Result<(), Error> {
        self.put(name, record)?;
        // Afterwards: until then, the element has a record at each moment.
        let Some(dead) = &self.dead else { return Ok(()) };
        unlink(dead, &FileName::record(name.directory, name.element))
    }

    /// Writes the reason of a failed attempt, replacing the old one.
    pub(super) fn put_reason(&self, name: &Name, reason: &str) -> Result<(), Error> {
        let file = FileName::reason(name.directory, name.element);
        let draft = FileName::reason_draft(name.directory, name.element);
        let create =
            |draft: &CStr| self.dir.create(draft, reason.as_bytes(), self.umask, false).map(drop);
        self.replace(&self.dir, &file, &draft, create, || Ok(false))
    }

    pub(super) fn remove_reason(&self, name: &Name) -> Result<(), Error> {
        self.unlink_everywhere(&FileName::reason(name.directory, name.element))
    }

    /// Returns `None` if there is no reason, or if it cannot be a reason of this library.
    pub(super) fn reason(&self, name: &Name) -> Result<Option<String>, Error> {
        let file = FileName::reason(name.directory, name.element);
        for dir in self.dirs() {
            match dir.read(file.c_str(), MAX_REASON_LEN as u64) {
                Ok(reason) => return Ok(Some(String::from_utf8_lossy(&reason).into_owned())),
                Err(Errno::NOENT) => {}
                // A link, or not a file; too long; of another user.
                Err(Errno::LOOP | Errno::INVAL | Errno::FBIG | Errno::ACCESS) => return Ok(None),
                Err(error) => return Err(io_error("read", dir, &file, error)),
            }
        }
        Ok(None)
    }

    /// Replaces a file in the directory `to` atomically by a draft, which `create` writes. `is_done` returns whether
    /// the file already has the new content.
    fn replace(
        &self,
        to: &Dir,
        file: &FileName,
        draft: &FileName,
        create: impl Fn(&CStr) -> Result<(), Errno>,
        is_done: impl Fn() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut retries = RetryBudget::of("write");
        loop {
            let written = create(draft.c_str())
                .and_then(|()| self.dir.rename(draft.c_str(), to, file.c_str()));
            match written {
                Ok(()) => return Ok(()),
                // A leftover of a crashed process.
                Err(Errno::EXIST) => unlink(&self.dir, draft)?,
                // Another process whose lock was purged, or over NFS this call itself, has already renamed the draft.
                Err(Errno::NOENT) if is_done()? => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(error) => {
                    // The original error is more useful than that of the cleanup.
                    let _ = self.dir.unlink(draft.c_str());
                    return Err(io_error("write", to, file, error));
                }
            }
            retries.spend(|| to.path_of(file.c_str()))?;
        }
    }

    /// Removes the records and reasons of elements that no longer exist.
    pub(super) fn purge(&self, root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
        let Listing { names, with_reason } = self.listing()?;
        for name in names {
            match element_exists(root, &name) {
                Ok(true) => {}
                // Elements are found by path, and the records by an open directory. If the queue was moved away in the
                // meantime, its elements only seem to be gone.
                Ok(false) if !self.belongs_to(root) => return Ok(()),
                Ok(false) => match self.remove_all(&name, with_reason.contains(&name)) {
                    Ok(()) => report.records += 1,
                    Err(error) => report.fail(error),
                },
                Err(error) => report.fail(error),
            }
        }
        Ok(())
    }

    /// Returns whether the records are those of the directory that the path of the queue leads to now.
    fn belongs_to(&self, root: &Root) -> bool {
        let (parent, found) = (self.dir.stat(c".."), stat(root.path()));
        parent.is_ok_and(|parent| found.is_ok_and(|found| file_id(&parent) == file_id(&found)))
    }

    /// Removes the record of an element, its reason and their drafts.
    fn remove_all(&self, name: &Name, has_reason: bool) -> Result<(), Error> {
        let Name { directory, element } = *name;
        // All are attempted: the argument of `and` is evaluated first.
        let reason = match has_reason {
            true => self
                .remove_reason(name)
                .and(unlink(&self.dir, &FileName::reason_draft(directory, element))),
            false => Ok(()),
        };
        let draft = unlink(&self.dir, &FileName::record_draft(directory, element));
        self.remove(name).and(draft).and(reason)
    }

    fn listing(&self) -> Result<Listing, Error> {
        let (mut names, mut with_reason) = (Vec::new(), HashSet::new());
        for dir in self.dirs() {
            list(dir, |file, name| {
                names.push(name);
                if file.is_reason {
                    with_reason.insert(name);
                }
            })?;
        }
        names.sort_unstable();
        // Reasons and drafts yield the name of their element, too.
        names.dedup();
        Ok(Listing { names, with_reason })
    }

    fn unlink_everywhere(&self, file: &FileName) -> Result<(), Error> {
        // Both are attempted: the argument of `and` is evaluated first.
        let dead = self.dead.as_ref().map_or(Ok(()), |dead| unlink(dead, file));
        unlink(&self.dir, file).and(dead)
    }

    /// Returns the directories of records. A record in the first one counts.
    fn dirs(&self) -> impl Iterator<Item = &Arc<Dir>> {
        iter::once(&self.dir).chain(&self.dead)
    }
}

/// Calls `visit` with each file in a directory of records, and its element.
fn list(dir: &Dir, mut visit: impl FnMut(RecordEntry, Name)) -> Result<(), Error> {
    let listed = dir.list(|name, _| {
        let Some(file) = RecordEntry::parse(name.to_bytes()) else { return };
        let name = Name { directory: file.directory, element: file.element };
        visit(file, name);
    });
    match listed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("list", dir.path(), error)),
    }
}

fn unlink(dir: &Dir, file: &FileName) -> Result<(), Error> {
    match dir.unlink(file.c_str()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(io_error("remove", dir, file, error)),
    }
}

fn io_error(operation: &'static str, dir: &Dir, file: &FileName, error: Errno) -> Error {
    Error::io(operation, dir.path_of(file.c_str()), error)
}

/// Returns whether an element is in the queue, locked or not.
pub(super) fn element_exists(root: &Root, name: &Name) -> Result<bool, Error> {
    let Some(dir) = root.open(name.directory)? else { return Ok(false) };
    match dir.stat(FileName::element(name.element).c_str()) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(Error::io("look for", root.path_of(name), error)),
    }
}
