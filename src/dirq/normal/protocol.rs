//! The implementation of [`Protocol`] for normal queues.

use rustix::io::Errno;

use super::layout::{LOCKED, Normal, OpenElement};
use crate::dirq::{
    Element, Error, Name, Purge, PurgeReport,
    fs::{FileType, OpenFor, modified},
    protocol::Protocol,
    root::{Opener, Root},
};

impl Protocol for Normal {
    type Payload = Element;

    fn type_name(&self) -> &'static str {
        "Queue"
    }

    fn root(&self) -> &Root {
        &self.root
    }

    fn len_of(&self, payload: &Element) -> usize {
        payload.iter().map(|(_, value)| value.len()).sum()
    }

    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.root.elements(directory, FileType::Directory)
    }

    #[cfg(feature = "metrics")]
    fn elements_and_locked(&self, directory: u32) -> Result<(Vec<Name>, u64), Error> {
        let names = self.root.elements(directory, FileType::Directory)?;
        let opener = self.root.opener();
        let is_locked = |name: &&Name| {
            let found = self.open_element(&opener, name, OpenFor::Traversal);
            found.is_ok_and(|found| found.is_some_and(|found| found.dir.stat(LOCKED).is_ok()))
        };
        let locked = names.iter().filter(is_locked).count() as u64;
        Ok((names, locked))
    }

    fn count(&self) -> Result<u64, Error> {
        self.root.count(FileType::Directory)
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        Ok(self.lock_element(&self.root.opener(), name, OpenFor::Traversal)?.is_some())
    }

    fn take(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
    ) -> Result<Option<Result<Element, Error>>, Error> {
        let taken = self.lock_and_read(opener, name, OpenFor::Traversal, limit)?;
        Ok(taken.map(|(_, read)| read))
    }

    fn dequeue(&self, name: &Name, limit: u64) -> Result<Option<Element>, Error> {
        let mut opener = self.root.opener();
        let taken = self.lock_and_read(&opener, name, OpenFor::Listing, limit)?;
        let Some((found, read)) = taken else { return Ok(None) };
        let removed = read.and_then(|element| {
            self.remove_locked(&mut opener, name, &found).map(|()| Some(element))
        });
        removed.or_else(|error| match error {
            // Another worker removed it, and removes the lock.
            Error::NotLocked { .. } if found.is_removed(name) => Ok(None),
            error => {
                // The original error is more useful than that of the cleanup.
                let _ = found.dir.rmdir(LOCKED);
                Err(error)
            }
        })
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let found = self
            .open_element(&self.root.opener(), name, OpenFor::Traversal)?
            .ok_or_else(not_locked)?;
        match found.dir.rmdir(LOCKED) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("unlock", found.dir.path(), error)),
        }
    }

    fn get(&self, name: &Name, limit: u64) -> Result<Element, Error> {
        let schema = self.schema()?;
        let found = self.open_locked(name)?;
        self.read_unless_removed(schema, name, &found, limit)?
            .ok_or_else(|| Error::NotLocked { path: self.root.path_of(name) })
    }

    fn peek(&self, name: &Name, limit: u64) -> Result<Option<Element>, Error> {
        let schema = self.schema()?;
        let Some(found) = self.open_element(&self.root.opener(), name, OpenFor::Traversal)? else {
            return Ok(None);
        };
        self.read_unless_removed(schema, name, &found, limit)
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let mut opener = self.root.opener();
        let found = self.open_element(&opener, name, OpenFor::Listing)?.ok_or_else(not_locked)?;
        self.remove_locked(&mut opener, name, &found)
    }

    fn check_locked(&self, name: &Name) -> Result<(), Error> {
        self.open_locked(name).map(drop)
    }

    fn lock_time(&self, opener: &Opener<'_>, name: &Name) -> Result<Option<i128>, Error> {
        let found = self.open_element(opener, name, OpenFor::Traversal)?;
        let Some(OpenElement { dir: element, .. }) = found else { return Ok(None) };
        // As for a purge, the lock is checked before the time.
        match element.stat(LOCKED).and_then(|_| element.own_stat()) {
            Ok(stat) => Ok(Some(modified(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("look for", element.path_of(LOCKED), error)),
        }
    }

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        self.purge_stale(purge)
    }
}
