//! What a kind of queue has to know, and nothing else: how its elements lie in the file system and are locked. All that
//! users call is written once above it.

use rustix::io::Errno;

use super::{
    Error, Name, Purge, PurgeReport,
    file_name::FileName,
    root::{Opener, Root},
};

/// How one kind of queue does what both do. Each of these may wait for a disk, but for the first two. What they read is
/// at most `limit` bytes a file, or in all where that is less than a file may have: more is an [`Error::TooLarge`].
///
/// It is `pub` as a bound of [`DirQueue`](super::DirQueue), and no one outside can name it or write another.
pub trait Protocol: Send + Sync + 'static {
    /// What an element is.
    type Payload: Send + 'static;

    /// The name of the queue's type, for `Debug`.
    fn type_name(&self) -> &'static str;

    fn root(&self) -> &Root;

    /// How many bytes of memory what was read takes, about.
    fn len_of(&self, payload: &Self::Payload) -> usize;

    /// The elements of a directory, in no order, locked ones included.
    fn elements(&self, directory: u32) -> Result<Vec<Name>, Error>;

    /// Those that may be locked, as far as that is cheap to see.
    fn unlocked(&self, directory: u32) -> Result<Vec<Name>, Error> {
        self.elements(directory)
    }

    /// How many elements there are, locked ones included.
    fn count(&self) -> Result<u64, Error>;

    /// Takes the lock of an element; false where it is taken, or the element is gone.
    fn lock(&self, name: &Name) -> Result<bool, Error>;

    /// Takes the lock of an element, and what is in it. Where that can't be read, the lock is given back.
    fn take(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        limit: u64,
    ) -> Result<Option<Self::Payload>, Error>;

    /// Locks an element, reads it and removes it; none where it can't be locked. Where one of these fails, the
    /// lock is given back.
    fn dequeue(&self, name: &Name, limit: u64) -> Result<Option<Self::Payload>, Error>;

    fn unlock(&self, name: &Name) -> Result<(), Error>;

    /// What is in an element that is locked.
    fn get(&self, name: &Name, limit: u64) -> Result<Self::Payload, Error>;

    /// What is in an element, locked or not; none where it is gone.
    fn peek(&self, name: &Name, limit: u64) -> Result<Option<Self::Payload>, Error>;

    fn remove(&self, name: &Name) -> Result<(), Error>;

    /// Makes the age of an element zero, and so that of its lock.
    fn touch(&self, name: &Name) -> Result<(), Error> {
        let path = || self.root().path_of(name);
        let gone = || Error::io("touch", path(), Errno::NOENT);
        let dir = self.root().open(name.directory)?.ok_or_else(gone)?;
        dir.touch(FileName::element(name.element).c_str()).map_err(Error::on("touch", path))
    }

    /// The same, if it is locked.
    fn renew(&self, name: &Name) -> Result<(), Error>;

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error>;
}
