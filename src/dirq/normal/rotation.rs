//! The directory for new elements: the last one, until it is full.
//!
//! Counting its elements at each add would make each add as expensive as the directory is full. Therefore each count
//! grants an allowance: a fraction of the free capacity that may be added before the next count. It is only a fraction
//! because other processes add and remove too.

use std::sync::Mutex;

use crate::dirq::{
    Error,
    file_name::FileName,
    fs::{FileType, may_exist},
    mutex::lock,
    retry_budget::RetryBudget,
    root::{Opener, Root},
};

/// The directory for new elements of a queue.
#[derive(Debug)]
pub(super) struct Rotation {
    max_elements: u64,
    /// `None` or a complete count, after a panic at any point: both are valid.
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    directory: u32,
    /// Number of elements that may be added before the next count.
    allowance: u64,
    /// Generation in which no next directory existed.
    generation: Option<u64>,
}

impl Rotation {
    /// Divisor of the free capacity that gives the allowance. Each of several writers may exceed the limit by that
    /// much.
    const ALLOWANCE_DIVISOR: u64 = 8;

    pub(super) fn new(max_elements: u32) -> Self {
        Self { max_elements: max_elements.into(), current: Mutex::new(None) }
    }

    /// Returns the directory for one more element. Creates it if needed.
    pub(super) fn directory(&self, root: &Root, opener: &Opener<'_>) -> Result<u32, Error> {
        // Held during the count: all waiters need its result.
        let mut current = lock(&self.current);
        // Taken out, so that nothing outdated remains if the count below fails.
        let known =
            current.take().filter(|known| known.allowance > 0 && !known.has_next(root, opener));
        let mut next = match known {
            Some(known) => known,
            None => self.find_directory(root)?,
        };
        // At least 1 before: `known` is filtered by it, and `find_directory` grants at least 1.
        next.allowance -= 1;
        next.generation = opener.generation();
        Ok(current.insert(next).directory)
    }

    /// Forgets the directory after a purge removed it, so that the next call lists the queue.
    pub(super) fn reset(&self) {
        *lock(&self.current) = None;
    }

    /// Returns whether one more element can be added without counting. Never blocks.
    pub(super) fn has_allowance(&self) -> bool {
        // A thread that counts holds the lock for as long as the disk takes.
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
                // Another kind of file has this name and is not touched.
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
}

impl Current {
    /// Returns whether another process found this directory full, and created the next.
    fn has_next(&self, root: &Root, opener: &Opener<'_>) -> bool {
        // Nothing was created in the queue since there was no next directory: no system call is needed.
        if self.generation.is_some() && self.generation == opener.generation() {
            return false;
        }
        let Some(next) = self.directory.checked_add(1) else { return false };
        may_exist(&root.path().join(FileName::directory(next).as_str()))
    }
}
