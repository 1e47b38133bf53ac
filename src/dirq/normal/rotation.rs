//! Which directory new elements go to: the last, until it is full.
//!
//! How full it is was counted once, as to count at each add would make each as expensive as there are elements.
//! Others add and remove some too, so it is counted anew after a part of the room there was.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dirq::{
    Error,
    file_name::FileName,
    fs::{FileType, may_exist},
    retry_budget::RetryBudget,
    root::{Opener, Root},
};

/// Which directory new elements of a queue go to.
#[derive(Debug)]
pub(super) struct Rotation {
    max_elements: u64,
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    directory: u32,
    /// How many elements go to it before they are counted anew.
    allowance: u64,
    /// Of the look at the queue at which there was no next directory.
    generation: Option<u64>,
}

impl Rotation {
    /// A writer fills this part of a directory before it counts anew. Each of many writers may so add this much
    /// too much.
    const ALLOWANCE_DIVISOR: u64 = 8;

    pub(super) fn new(max_elements: u32) -> Self {
        Self { max_elements: max_elements.into(), current: Mutex::new(None) }
    }

    /// The directory for one more element, which it makes if need be.
    pub(super) fn directory(&self, root: &Root, opener: &Opener<'_>) -> Result<u32, Error> {
        // Held while it counts: all who wait need what it finds.
        let mut current = self.current();
        let known =
            current.take().filter(|known| known.allowance > 0 && !known.has_next(root, opener));
        let mut next = match known {
            Some(known) => known,
            None => self.find_directory(root)?,
        };
        next.allowance -= 1;
        next.generation = opener.generation();
        Ok(current.insert(next).directory)
    }

    /// Looks anew at the next call, as a purge took the directory.
    pub(super) fn reset(&self) {
        *self.current() = None;
    }

    /// Whether one more element needs no count of those that are there. It never waits.
    pub(super) fn has_allowance(&self) -> bool {
        // Who counts holds it for as long as a disk is slow.
        self.current
            .try_lock()
            .is_ok_and(|current| current.as_ref().is_some_and(|current| current.allowance > 0))
    }

    fn find_directory(&self, root: &Root) -> Result<Current, Error> {
        let last = root.directories()?.last().copied();
        if let Some(directory) = last {
            let count = root.count_in(directory, FileType::Directory)?;
            if count < self.max_elements {
                let allowance = (self.max_elements - count)
                    .min(self.max_elements / Self::ALLOWANCE_DIVISOR)
                    .max(1);
                return Ok(Current { directory, allowance, generation: None });
            }
        }
        let mut retries = RetryBudget::of("add to");
        let mut directory = last.map_or(0, |last| last.saturating_add(1));
        loop {
            root.make(directory)?;
            match root.open(directory) {
                Ok(_) => break,
                // Something else has its name, and is to be allowance alone.
                Err(Error::Foreign { .. }) => directory = directory.saturating_add(1),
                Err(error) => return Err(error),
            }
            retries.spend(|| root.path().to_owned())?;
        }
        Ok(Current {
            directory,
            allowance: (self.max_elements / Self::ALLOWANCE_DIVISOR).max(1),
            generation: None,
        })
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        // What a panic allowance is none, or was counted: both are right.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    /// Whether somebody else found this directory full, and made the next.
    fn has_next(&self, root: &Root, opener: &Opener<'_>) -> bool {
        // Nothing was made in the queue since there was none: that is known without a call.
        if self.generation.is_some() && self.generation == opener.generation() {
            return false;
        }
        let Some(next) = self.directory.checked_add(1) else { return false };
        may_exist(&root.path().join(FileName::directory(next).as_str()))
    }
}
