//! A lock in the file system as a guard in memory: given back by whoever drops it.

use std::{mem, sync::Arc, time::Duration};

use super::{Error, Name, delivery::Delivery, protocol::Protocol, root::Opener};

/// A lock that somebody has to give back: whoever drops it does.
///
/// A future that waits for a lock may be dropped before it has it: then the lock is dropped with the result
/// that nobody came for.
pub(super) struct LockGuard<P: Protocol + ?Sized> {
    queue: Arc<P>,
    /// `NULL`, which no lock has, where there is nothing to give back.
    name: Name,
    /// None where the lock is all that is wanted, or the element was just read.
    delivery: Option<Delivery>,
}

impl<P: Protocol + ?Sized> LockGuard<P> {
    /// Locks an element; none where that can't be.
    pub(super) fn lock(queue: &Arc<P>, name: Name) -> Result<Option<Self>, Error> {
        let locked = queue.lock(&name)?;
        Ok(locked.then(|| Self { queue: queue.clone(), name, delivery: None }))
    }

    /// Locks and reads an element; none where it can't be locked.
    pub(super) fn take(
        queue: &Arc<P>,
        opener: &Opener<'_>,
        name: Name,
        limit: u64,
    ) -> Result<Option<(Self, P::Payload)>, Error> {
        let taken = queue.take(opener, &name, limit)?;
        Ok(taken.map(|payload| (Self { queue: queue.clone(), name, delivery: None }, payload)))
    }

    /// Remembers that the element is given out.
    pub(super) fn set_delivery(&mut self, delivery: Delivery) {
        self.delivery = Some(delivery);
    }

    pub(super) fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }

    /// From here on, to give it back is to have failed.
    pub(super) fn mark_delivered(&mut self) {
        if let Some(delivery) = &mut self.delivery {
            delivery.mark_delivered();
        }
    }

    pub(super) fn queue(&self) -> &Arc<P> {
        &self.queue
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn remove(self) -> Result<(), Error> {
        // An error leaves it to the drop, which gives the lock of what could not be removed back.
        self.queue.remove(&self.name)?;
        self.queue.root().metrics.removed();
        if let Some(delivery) = &self.delivery {
            delivery.remove_record(self.queue.root(), &self.name);
        }
        self.keep();
        Ok(())
    }

    /// Gives it back, to be given out again in `delay`, or as the queue's retries say; and says whether that worked.
    pub(super) fn unlock(mut self, delay: Option<Duration>) -> Result<(), Error> {
        self.unlock_once(delay)
    }

    fn unlock_once(&mut self, delay: Option<Duration>) -> Result<(), Error> {
        // Once is enough: by a second try the lock might be another's.
        let name = mem::replace(&mut self.name, Name::NULL);
        // First: unlocked, it might be given out by what was known before.
        let recorded = self
            .delivery
            .map_or(Ok(()), |delivery| delivery.record_unlock(self.queue.root(), &name, delay));
        self.queue.unlock(&name).and(recorded)
    }

    /// Leaves the element locked.
    pub(super) fn keep(mut self) {
        // No `mem::remove_record`: the lock is to stay, and not the memory of the handle too.
        self.name = Name::NULL;
    }
}

impl<P: Protocol + ?Sized> Drop for LockGuard<P> {
    fn drop(&mut self) {
        if self.name != Name::NULL {
            // A lock that was purged is not there, and of any other trouble the purge takes care.
            let _ = self.unlock_once(None);
        }
    }
}
