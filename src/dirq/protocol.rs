use std::sync::Arc;

use rustix::io::Errno;

use super::{Error, Name, Purge, PurgeReport, name::Entry, root::Top};

/// How one kind of queue does what both do. Each of these may wait for a disk.
pub(super) trait Protocol: Send + Sync + 'static {
    /// What an element is.
    type Payload: Send + 'static;

    fn top(&self) -> &Top;

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
    fn take(&self, name: &Name) -> Result<Option<Self::Payload>, Error>;

    /// Locks an element, reads it and removes it; none where it can't be locked. Where one of these fails, the
    /// lock is given back.
    fn dequeue(&self, name: &Name) -> Result<Option<Self::Payload>, Error>;

    fn unlock(&self, name: &Name) -> Result<(), Error>;

    /// What is in an element that is locked.
    fn get(&self, name: &Name) -> Result<Self::Payload, Error>;

    /// What is in an element, locked or not; none where it is gone.
    fn peek(&self, name: &Name) -> Result<Option<Self::Payload>, Error>;

    fn remove(&self, name: &Name) -> Result<(), Error>;

    /// Makes the age of an element zero, and so that of its lock.
    fn touch(&self, name: &Name) -> Result<(), Error> {
        let path = || self.top().path_of(name);
        let gone = || Error::io("touch", path(), Errno::NOENT);
        let folder = self.top().folder(name.directory)?.ok_or_else(gone)?;
        folder.touch(Entry::element(name.element).c_str()).map_err(Error::on("touch", path))
    }

    /// The same, if it is locked.
    fn renew(&self, name: &Name) -> Result<(), Error>;

    fn purge(&self, purge: &Purge) -> Result<PurgeReport, Error>;
}

/// A lock that somebody has to give back: whoever drops it does.
///
/// A future that waits for a lock may be dropped before it has it: then the lock is dropped with the result
/// that nobody came for.
pub(super) struct Held<P: Protocol + ?Sized> {
    queue: Arc<P>,
    name: Name,
}

impl<P: Protocol + ?Sized> Held<P> {
    /// Locks an element; none where that can't be.
    pub(super) fn lock(queue: &Arc<P>, name: Name) -> Result<Option<Self>, Error> {
        let locked = queue.lock(&name)?;
        Ok(locked.then(|| Self { queue: queue.clone(), name }))
    }

    /// Locks and reads an element; none where it can't be locked.
    pub(super) fn take(queue: &Arc<P>, name: Name) -> Result<Option<(Self, P::Payload)>, Error> {
        let taken = queue.take(&name)?;
        Ok(taken.map(|payload| (Self { queue: queue.clone(), name }, payload)))
    }

    pub(super) fn queue(&self) -> &Arc<P> {
        &self.queue
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn remove(self) -> Result<(), Error> {
        self.queue.remove(&self.name)?;
        self.keep();
        Ok(())
    }

    /// Gives it back, and says whether that worked.
    pub(super) fn unlock(self) -> Result<(), Error> {
        let unlocked = self.queue.unlock(&self.name);
        self.keep();
        unlocked
    }

    /// Leaves the element locked.
    pub(super) fn keep(mut self) {
        // Only the lock is left, and not the memory of the handle.
        self.name = Name::NULL;
    }
}

impl<P: Protocol + ?Sized> Drop for Held<P> {
    fn drop(&mut self) {
        if self.name != Name::NULL {
            // A lock that was purged is not there, and of any other trouble the purge takes care.
            let _ = self.queue.unlock(&self.name);
        }
    }
}
