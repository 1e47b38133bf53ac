use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::{
    fs::{Access, FileType, access},
    io::Errno,
};

use crate::dirq::{
    Error,
    name::Entry,
    root::{Top, Tries, View},
};

/// Which directory new elements go to: the last, until it is full.
///
/// How full it is was counted once, as to count at each add would make each as expensive as there are elements.
/// Others add and remove some too, so it is counted anew after a part of what there was room for.
#[derive(Debug)]
pub(super) struct Insertion {
    max_elements: u64,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    directory: u32,
    /// How many elements go to it before they are counted anew.
    room: u64,
    /// Of the view in which there was no next directory.
    seen: Option<u64>,
}

impl Insertion {
    /// A writer fills this part of a directory before it counts anew. Each of many writers may so add this much
    /// too much.
    const PART: u64 = 8;

    pub(super) fn new(max_elements: u32) -> Self {
        Self { max_elements: max_elements.into(), last: Mutex::new(None) }
    }

    /// The directory for one more element, which it makes if need be.
    pub(super) fn directory(&self, top: &Top, view: &View<'_>) -> Result<u32, Error> {
        // Held while it counts: all who wait need what it finds.
        let mut last = self.last();
        let known = last.take().filter(|last| last.room > 0 && !last.has_next(top, view));
        let mut next = match known {
            Some(known) => known,
            None => self.find(top)?,
        };
        next.room -= 1;
        next.seen = view.generation();
        Ok(last.insert(next).directory)
    }

    /// Looks anew at the next call, as a purge took the directory.
    pub(super) fn forget(&self) {
        *self.last() = None;
    }

    /// Whether one more element needs no count of those that are there.
    pub(super) fn has_room(&self) -> bool {
        self.last().as_ref().is_some_and(|last| last.room > 0)
    }

    fn find(&self, top: &Top) -> Result<Last, Error> {
        let last = top.directories()?.last().copied();
        if let Some(directory) = last {
            let count = top.count_in(directory, FileType::Directory)?;
            if count < self.max_elements {
                let room = (self.max_elements - count).min(self.max_elements / Self::PART).max(1);
                return Ok(Last { directory, room, seen: None });
            }
        }
        let mut tries = Tries::of("add to");
        let mut directory = last.map_or(0, |last| last.saturating_add(1));
        loop {
            top.make(directory)?;
            match top.folder(directory) {
                Ok(_) => break,
                // Something else has its name, and is to be left alone.
                Err(Error::Foreign { .. }) => directory = directory.saturating_add(1),
                Err(error) => return Err(error),
            }
            tries.again(|| top.path().to_owned())?;
        }
        Ok(Last { directory, room: (self.max_elements / Self::PART).max(1), seen: None })
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    /// Whether somebody else found this directory full, and made the next.
    fn has_next(&self, top: &Top, view: &View<'_>) -> bool {
        if self.seen.is_some() && self.seen == view.generation() {
            return false;
        }
        let Some(next) = self.directory.checked_add(1) else { return false };
        let path = top.path().join(Entry::directory(next).as_str());
        !matches!(access(path, Access::EXISTS), Err(Errno::NOENT))
    }
}
