//! The implementation of [`Protocol`] for simple queues.

use std::{collections::HashSet, ffi::CStr};

use bytes::Bytes;
use rustix::io::Errno;

use super::{
    layout::{Companion, Simple, companion_of},
    lock::remove_locked,
};
use crate::dirq::{
    Error, Name, Purge, PurgeReport,
    file_name::FileName,
    fs::{Dir, FileType, is_file, modified},
    protocol::Protocol,
    root::{Opener, Root},
};

impl Protocol for Simple {
    type Payload = Bytes;

    fn type_name(&self) -> &'static str {
        "QueueSimple"
    }

    fn root(&self) -> &Root {
        &self.root
    }

    fn len_of(&self, payload: &Bytes) -> usize {
        payload.len()
    }

    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.root.elements(directory, FileType::RegularFile)
    }

    fn unlocked(&self, directory: u32) -> Result<Vec<Name>, Error> {
        // One listing suffices: locking an element that was locked in the meantime fails, and an element that was
        // unlocked in the meantime is found by the next scan.
        let mut locked = HashSet::new();
        let mut names = self.root.elements_and(directory, FileType::RegularFile, |name| {
            if let Some((element, Companion::Lock)) = companion_of(name) {
                locked.insert(element);
            }
        })?;
        names.retain(|name| !locked.contains(&name.element));
        Ok(names)
    }

    #[cfg(feature = "metrics")]
    fn elements_and_locked(&self, directory: u32) -> Result<(Vec<Name>, u64), Error> {
        let mut locked = 0;
        let names = self.root.elements_and(directory, FileType::RegularFile, |name| {
            locked += u64::from(matches!(companion_of(name), Some((_, Companion::Lock))));
        })?;
        Ok((names, locked))
    }

    fn count(&self) -> Result<u64, Error> {
        self.root.count(FileType::RegularFile)
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        let inspect = |dir: &Dir, element: &CStr| match dir.stat(element)? {
            stat if is_file(&stat) => Ok(()),
            _ => Err(Errno::INVAL),
        };
        let locked =
            self.lock_and_inspect(&self.root.opener(), name, self.root.max_size, inspect)?;
        Ok(locked.is_some())
    }

    fn take(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
    ) -> Result<Option<Result<Bytes, Error>>, Error> {
        let taken = self.lock_and_inspect(opener, name, limit, |dir, element| {
            match dir.read(element, limit) {
                // The element was removed.
                Err(Errno::NOENT) => Err(Errno::NOENT),
                read => Ok(read),
            }
        })?;
        Ok(taken.map(|(dir, read)| {
            let path = || dir.path_of(FileName::element(name.element).c_str());
            read.map(Bytes::from).map_err(|error| Error::unreadable("read", path(), error, limit))
        }))
    }

    fn dequeue(&self, name: &Name, limit: u64) -> Result<Option<Bytes>, Error> {
        let taken = self.lock_and_read(&self.root.opener(), name, limit)?;
        let Some((dir, body)) = taken else { return Ok(None) };
        let is_removed = remove_locked(&dir, name).inspect_err(|_| {
            // The original error is more useful than that of the cleanup.
            let _ = dir.unlink(FileName::lock(name.element).c_str());
        })?;
        Ok((is_removed || !self.root.is_local()).then_some(body))
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let dir = self.root.open(name.directory)?.ok_or_else(not_locked)?;
        match dir.unlink(FileName::lock(name.element).c_str()) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("unlock", self.root.path_of(name), error)),
        }
    }

    fn get(&self, name: &Name, limit: u64) -> Result<Bytes, Error> {
        self.read(name, &FileName::lock(name.element), limit)?
            .ok_or_else(|| Error::NotLocked { path: self.root.path_of(name) })
    }

    fn peek(&self, name: &Name, limit: u64) -> Result<Option<Bytes>, Error> {
        self.read(name, &FileName::element(name.element), limit)
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let not_locked = || Error::NotLocked { path: self.root.path_of(name) };
        let dir = self.root.open(name.directory)?.ok_or_else(not_locked)?;
        let lock = FileName::lock(name.element);
        match dir.stat(lock.c_str()) {
            Ok(_) if remove_locked(&dir, name)? || !self.root.is_local() => Ok(()),
            // Another worker has removed it. A network file system may repeat the call, so that it was this one.
            Ok(_) => Err(not_locked()),
            Err(Errno::NOENT) => Err(not_locked()),
            Err(error) => Err(Error::io("look for", dir.path_of(lock.c_str()), error)),
        }
    }

    fn check_locked(&self, name: &Name) -> Result<(), Error> {
        self.get_path(name).map(drop)
    }

    fn lock_time(&self, opener: &Opener<'_>, name: &Name) -> Result<Option<i128>, Error> {
        let Some(dir) = opener.open(name.directory)? else { return Ok(None) };
        let lock = FileName::lock(name.element);
        match dir.stat(lock.c_str()) {
            Ok(stat) => Ok(Some(modified(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("look for", dir.path_of(lock.c_str()), error)),
        }
    }

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error> {
        self.purge_stale(purge)
    }
}
