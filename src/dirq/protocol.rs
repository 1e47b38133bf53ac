//! The interface of a kind of queue: how its elements are stored and locked. All public methods are written once on top
//! of it.

use rustix::io::Errno;

use super::{
    Error, Name, Purge, PurgeReport,
    file_name::FileName,
    root::{Opener, Root},
};

/// The operations that each kind of queue implements. All of them may block on a disk, except the first three. Reads
/// are limited to `limit` bytes per file, or to `limit` bytes per element if that is less than a file may have. Longer
/// content is an [`Error::TooLarge`].
///
/// `pub` because it is a bound of [`DirQueue`](super::DirQueue). Other crates can neither name nor implement it.
pub trait Protocol: Send + Sync + 'static {
    /// The content of an element.
    type Payload: Send + 'static;

    /// Returns the name of the queue's type, for `Debug`.
    fn type_name(&self) -> &'static str;

    fn root(&self) -> &Root;

    /// Returns the approximate size of the content in memory, in bytes.
    fn len_of(&self, payload: &Self::Payload) -> usize;

    /// Returns the elements of a directory, unordered, including locked ones.
    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error>;

    /// Returns the elements that are not locked, as far as that can be checked cheaply.
    fn unlocked(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.elements(directory)
    }

    /// Returns the elements of a directory, unordered, and the number of locked ones.
    #[cfg(feature = "metrics")]
    fn elements_and_locked(&self, directory: u32) -> Result<(Vec<Name>, u64), Error>;

    /// Returns the number of elements, including locked ones.
    fn count(&self) -> Result<u64, Error>;

    /// Locks an element. Returns false if it is already locked or missing.
    fn lock(&self, name: &Name) -> Result<bool, Error>;

    /// Locks an element and reads it. Returns `None` if it cannot be locked, or is removed while it is read. If it can
    /// be locked and not read, the inner result is an error, and the element stays locked.
    fn take(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
    ) -> Result<Option<Result<Self::Payload, Error>>, Error>;

    /// Locks an element, reads it and removes it. Returns `None` if it cannot be locked, or if another worker removes
    /// it first. If a later step fails, the lock is released.
    fn dequeue(&self, name: &Name, limit: u64) -> Result<Option<Self::Payload>, Error>;

    fn unlock(&self, name: &Name) -> Result<(), Error>;

    /// Reads a locked element.
    fn get(&self, name: &Name, limit: u64) -> Result<Self::Payload, Error>;

    /// Reads an element, locked or not. Returns `None` if it is missing.
    fn peek(&self, name: &Name, limit: u64) -> Result<Option<Self::Payload>, Error>;

    fn remove(&self, name: &Name) -> Result<(), Error>;

    /// Resets the age of an element, and of its lock, to zero.
    fn touch(&self, name: &Name) -> Result<(), Error> {
        let path = || self.root().path_of(name);
        let gone = || Error::io("touch", path(), Errno::NOENT);
        let dir = self.root().open(name.directory)?.ok_or_else(gone)?;
        dir.touch(FileName::element(name.element).c_str()).map_err(Error::on("touch", path))
    }

    /// Same as [`touch`](Self::touch), but fails with [`Error::NotLocked`] if the element is not locked, or is gone.
    fn renew(&self, name: &Name) -> Result<(), Error> {
        match self.touch(name) {
            // The worker that has the lock by now has removed the element.
            Err(error) if error.is_missing() => {
                return Err(Error::NotLocked { path: self.root().path_of(name) });
            }
            touched => touched?,
        }
        // Checked after touching: a purge may remove a stale lock until then.
        self.check_locked(name)
    }

    fn check_locked(&self, name: &Name) -> Result<(), Error>;

    /// Returns the time at which a lock was acquired or renewed, in nanoseconds since 1970 by the clock of the file
    /// system. Returns `None` if the element is not locked.
    fn lock_time(&self, opener: &Opener<'_>, name: &Name) -> Result<Option<i128>, Error>;

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error>;
}
