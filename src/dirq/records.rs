//! What is known of elements that were given out before: how often, and when they come again.
//!
//! 1. A record stands beside the elements, in a directory of its own whose name no implementation takes for one of
//!    elements: all others work in the queue as if it were not there.
//! 2. It is a symbolic link that leads nowhere: its text is made, read and replaced by one step each, and so is whole.
//! 3. It is written by who has the element's lock. That of an element that is gone means nothing, and is the purge's.

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

/// What is known of an element that was given out before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// How often it was given out.
    pub(super) attempts: u32,
    /// From when on it may be given out again, in microseconds since 1970; never where it is dead.
    pub(super) due: Option<u64>,
}

impl Record {
    /// As of an element that somebody works on: due as soon as it has no lock.
    pub(super) fn delivered(attempts: u32) -> Self {
        Self { attempts, due: Some(0) }
    }

    pub(super) fn dead(attempts: u32) -> Self {
        Self { attempts, due: None }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.due.is_none()
    }

    /// Whether the element may be given out at a moment.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    fn to_text(self) -> CString {
        let Self { attempts, due } = self;
        let due = due.map_or("dead".to_owned(), |due| due.to_string());
        CString::new(format!("{attempts} {due}")).expect("digits and a word have no zero")
    }

    /// None where it is no record.
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
    const DIRECTORY: &str = "retries";

    /// None where there are none, as nothing ever failed.
    pub(super) fn open(root: &Root) -> Result<Option<Self>, Error> {
        Ok(root.opener().open_named(Self::DIRECTORY)?.map(|dir| Self { dir }))
    }

    pub(super) fn open_or_make(root: &Root) -> Result<Self, Error> {
        Ok(Self { dir: root.open_or_make(&mut root.opener(), Self::DIRECTORY)? })
    }

    /// All of them, in the order of their elements' names.
    pub(super) fn list(&self) -> Result<Vec<(Name, Record)>, Error> {
        self.iter()?.collect()
    }

    /// The same, each read as it is asked for: who wants few pays for the names of all, and for the texts of few.
    pub(super) fn iter(
        &self,
    ) -> Result<impl Iterator<Item = Result<(Name, Record), Error>> + '_, Error> {
        let mut names = self.names()?;
        names.sort_unstable();
        // A draft has the name of its record, too.
        names.dedup();
        let read = |name| Some(self.get(&name).transpose()?.map(|record| (name, record)));
        Ok(names.into_iter().filter_map(read))
    }

    /// None where there is none, or something else.
    pub(super) fn get(&self, name: &Name) -> Result<Option<Record>, Error> {
        let file = FileName::record(name.directory, name.element);
        match self.dir.read_link(file.c_str()) {
            Ok(text) => Ok(Record::parse(&text)),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.io_error("read", &file, error)),
        }
    }

    /// Writes what is now known, in the place of what was.
    pub(super) fn put(&self, name: &Name, record: Record) -> Result<(), Error> {
        let text = record.to_text();
        let file = FileName::record(name.directory, name.element);
        // Most are the first of their element: then one step is enough.
        match self.dir.symlink(&text, file.c_str()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(self.io_error("write", &file, error)),
        }
        let draft = FileName::record_draft(name.directory, name.element);
        let mut retries = RetryBudget::of("write");
        loop {
            let written = self
                .dir
                .symlink(&text, draft.c_str())
                .and_then(|()| self.dir.rename(draft.c_str(), &self.dir, file.c_str()));
            match written {
                Ok(()) => return Ok(()),
                // That of a process that died over it.
                Err(Errno::EXIST) => self.unlink(&draft)?,
                // Another whose lock of this element was purged, or over NFS this very call, was quicker.
                Err(Errno::NOENT) if self.get(name)? == Some(record) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(error) => {
                    // The first error is the one to tell.
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

    /// Takes away what is about elements that are gone.
    pub(super) fn purge(&self, root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
        for name in self.names()? {
            match element_exists(root, &name) {
                Ok(true) => {}
                Ok(false) => {
                    let file = FileName::record(name.directory, name.element);
                    let draft = FileName::record_draft(name.directory, name.element);
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

/// Whether an element is in the queue, locked or not.
pub(super) fn element_exists(root: &Root, name: &Name) -> Result<bool, Error> {
    let Some(dir) = root.open(name.directory)? else { return Ok(false) };
    match dir.stat(FileName::element(name.element).c_str()) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(Error::io("look for", root.path_of(name), error)),
    }
}

/// The wall clock, which processes share, in microseconds since 1970.
pub(super) fn now_micros() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The moment `delay` from now. One that overflows never comes.
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
    fn a_text_is_read_as_it_was_written_and_nothing_else_is() {
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
