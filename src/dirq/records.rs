//! Records of delivered elements: the number of deliveries, and the time of the next one.
//!
//! 1. Records are stored in a separate directory, whose name no implementation takes for a directory of elements: other
//!    implementations ignore it.
//! 2. A record is a symbolic link without an existing target. Its text is created, read and replaced atomically.
//! 3. A record is written by the owner of the element's lock. A record without its element has no meaning, and a purge
//!    removes it.

use std::{
    ffi::{CStr, CString},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::io::Errno;

use super::{
    Error, Name, PurgeReport,
    file_name::{FileName, record_of},
    fs::Dir,
    retry_budget::RetryBudget,
    root::Root,
};

/// The record of an element that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Number of deliveries.
    pub(super) attempts: u32,
    /// Time from which it may be delivered again, in microseconds since 1970; `None` if it is dead.
    pub(super) due: Option<u64>,
}

impl Record {
    /// Returns the record of an element in delivery: due as soon as it is unlocked.
    pub(super) fn delivered(attempts: u32) -> Self {
        Self { attempts, due: Some(0) }
    }

    pub(super) fn dead(attempts: u32) -> Self {
        Self { attempts, due: None }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.due.is_none()
    }

    /// Returns whether the element may be delivered at the time `now`.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    fn to_text(self) -> CString {
        let Self { attempts, due } = self;
        let due = due.map_or("dead".to_owned(), |due| due.to_string());
        // Stored, and read by processes with other releases of this library: the format must not change.
        CString::new(format!("{attempts} {due}")).expect("digits and a word have no NUL")
    }

    /// Returns `None` if the text is not a record.
    fn parse(text: &CStr) -> Option<Self> {
        let (attempts, due) = text.to_str().ok()?.split_once(' ')?;
        let due = match due {
            "dead" => None,
            due => Some(due.parse().ok()?),
        };
        Some(Self { attempts: attempts.parse().ok()?, due })
    }
}

/// The records of a queue.
pub(super) struct Records {
    dir: Arc<Dir>,
}

impl Records {
    // Not next to the elements: there, Perl's purge unlinks files with a dot in their names, and other files keep a
    // directory from being removed.
    const DIRECTORY: &str = "retries";

    /// Returns `None` if the directory does not exist, because nothing has failed yet.
    pub(super) fn open(root: &Root) -> Result<Option<Self>, Error> {
        Ok(root.opener().open_named(Self::DIRECTORY)?.map(|dir| Self { dir }))
    }

    pub(super) fn open_or_make(root: &Root) -> Result<Self, Error> {
        Ok(Self { dir: root.open_or_make(&mut root.opener(), Self::DIRECTORY)? })
    }

    /// Returns all records, in the order of their elements' names.
    pub(super) fn list(&self) -> Result<Vec<(Name, Record)>, Error> {
        self.iter()?.collect()
    }

    /// Same as [`list`](Self::list), but reads each record on demand, so that a caller that needs few reads few.
    pub(super) fn iter(
        &self,
    ) -> Result<impl Iterator<Item = Result<(Name, Record), Error>> + '_, Error> {
        let mut names = self.names()?;
        names.sort_unstable();
        // A draft yields the name of its record, too.
        names.dedup();
        let read = |name| Some(self.get(&name).transpose()?.map(|record| (name, record)));
        Ok(names.into_iter().filter_map(read))
    }

    /// Returns `None` if there is no record, or something else has its name.
    pub(super) fn get(&self, name: &Name) -> Result<Option<Record>, Error> {
        let file = FileName::record(name.directory, name.element);
        match self.dir.read_link(file.c_str()) {
            Ok(text) => Ok(Record::parse(&text)),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.io_error("read", &file, error)),
        }
    }

    /// Writes a record, replacing the old one.
    pub(super) fn put(&self, name: &Name, record: Record) -> Result<(), Error> {
        let text = record.to_text();
        let file = FileName::record(name.directory, name.element);
        // Most records are the first of their element: then one call is enough.
        match self.dir.symlink(&text, file.c_str()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(self.io_error("write", &file, error)),
        }
        // A symbolic link cannot be changed in place. Renaming replaces it atomically, so that a record is never
        // missing.
        let draft = FileName::record_draft(name.directory, name.element);
        let mut retries = RetryBudget::of("write");
        loop {
            let written = self
                .dir
                .symlink(&text, draft.c_str())
                .and_then(|()| self.dir.rename(draft.c_str(), &self.dir, file.c_str()));
            match written {
                Ok(()) => return Ok(()),
                // A leftover of a crashed process.
                Err(Errno::EXIST) => self.unlink(&draft)?,
                // Another process whose lock was purged, or over NFS this call itself, has already renamed the draft.
                Err(Errno::NOENT) if self.get(name)? == Some(record) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(error) => {
                    // The original error is more useful than that of the cleanup.
                    let _ = self.dir.unlink(draft.c_str());
                    return Err(self.io_error("write", &file, error));
                }
            }
            retries.spend(|| self.dir.path_of(file.c_str()))?;
        }
    }

    pub(super) fn remove(&self, name: &Name) -> Result<(), Error> {
        self.unlink(&FileName::record(name.directory, name.element))
    }

    /// Removes the records of elements that no longer exist.
    pub(super) fn purge(&self, root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
        for name in self.names()? {
            match element_exists(root, &name) {
                Ok(true) => {}
                Ok(false) => {
                    let file = FileName::record(name.directory, name.element);
                    let draft = FileName::record_draft(name.directory, name.element);
                    // Both are attempted: the argument of `and` is evaluated first.
                    match self.unlink(&file).and(self.unlink(&draft)) {
                        Ok(()) => report.records += 1,
                        Err(error) => report.fail(error),
                    }
                }
                Err(error) => report.fail(error),
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<Name>, Error> {
        let mut names = Vec::new();
        let listed = self.dir.list(|name, _| {
            let numbers = record_of(name.to_bytes());
            names.extend(numbers.map(|(directory, element)| Name { directory, element }));
        });
        match listed {
            Ok(()) | Err(Errno::NOENT) => Ok(names),
            Err(error) => Err(Error::io("list", self.dir.path(), error)),
        }
    }

    fn unlink(&self, file: &FileName) -> Result<(), Error> {
        match self.dir.unlink(file.c_str()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.io_error("remove", file, error)),
        }
    }

    fn io_error(&self, operation: &'static str, file: &FileName, error: Errno) -> Error {
        Error::io(operation, self.dir.path_of(file.c_str()), error)
    }
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

/// Returns the wall clock time, which all processes share, in microseconds since 1970.
pub(super) fn now_micros() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the time `delay` from now. If it overflows, it is never reached.
pub(super) fn due_in(delay: Duration) -> u64 {
    now_micros().saturating_add(micros(delay))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_text_round_trips_and_other_text_is_rejected() {
        for record in [
            Record::delivered(1),
            Record::dead(u32::MAX),
            Record { attempts: 0, due: Some(u64::MAX) },
        ] {
            assert_eq!(Record::parse(&record.to_text()), Some(record));
        }
        for text in
            [c"", c"1", c"1 ", c" 1", c"-1 2", c"1 death", c"/etc/passwd", c"1 2 3", c"\xff 1"]
        {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
    }
}
