//! A file system lock as a guard that releases it on drop.

use std::{mem, sync::Arc, time::Duration};

use super::{
    Error, Name,
    blocking::run_detached,
    delivery::{Delivery, Outcome},
    protocol::Protocol,
    record::now_micros,
    root::Opener,
};

/// A lock that is released on drop.
///
/// A future that waits for a lock may be dropped before it receives it. Then the guard is dropped with the unused
/// result.
pub(super) struct LockGuard<P: Protocol + ?Sized> {
    queue: Arc<P>,
    /// `NULL`, which no element has, if there is nothing to release.
    name: Name,
    /// `None` if only the lock was requested, or if the element was read outside of an iteration.
    delivery: Option<Delivery>,
    /// The [time](Protocol::lock_time) of the lock of a prefetched element.
    prefetched_at: Option<i128>,
}

/// The result of removing an element.
pub(super) enum Removal<P: Protocol + ?Sized> {
    Done,
    /// The lock was released, or is another process's.
    Failed(Error),
    /// The element is still locked, and another attempt may succeed.
    TryAgain(LockGuard<P>, Error),
}

impl<P: Protocol + ?Sized> LockGuard<P> {
    /// Locks an element, or returns `None` if it cannot be locked.
    pub(super) fn lock(queue: &Arc<P>, name: Name) -> Result<Option<Self>, Error> {
        let locked = queue.lock(&name)?;
        Ok(locked.then(|| Self::new(queue, name)))
    }

    /// Locks and reads an element, or returns `None` if it cannot be locked. The element is locked even if it cannot be
    /// read.
    #[expect(clippy::type_complexity, reason = "a type of its own would have one use")]
    pub(super) fn take(
        queue: &Arc<P>,
        opener: &Opener<'_>,
        name: Name,
        limit: u64,
    ) -> Result<Option<(Self, Result<P::Payload, Error>)>, Error> {
        let taken = queue.take(opener, &name, limit)?;
        Ok(taken.map(|read| (Self::new(queue, name), read)))
    }

    fn new(queue: &Arc<P>, name: Name) -> Self {
        Self { queue: queue.clone(), name, delivery: None, prefetched_at: None }
    }

    /// Attaches the delivery, whose outcome is recorded when the lock is released.
    pub(super) fn set_delivery(&mut self, delivery: Delivery) {
        self.delivery = Some(delivery);
    }

    pub(super) fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }

    /// Marks the element as prefetched: its lock is released only if it is not [lost](Self::is_lost).
    pub(super) fn mark_prefetched(&mut self, opener: &Opener<'_>) {
        self.prefetched_at = self.queue.lock_time(opener, &self.name).ok().flatten();
    }

    /// Returns whether the lock of a prefetched element is missing, or is another process's.
    pub(super) fn is_lost(&self) -> bool {
        is_lost(&*self.queue, &self.name, self.prefetched_at)
    }

    /// Marks the element as handed to the user. From now on, unlocking it counts as a failure.
    pub(super) fn mark_delivered(&mut self) {
        self.prefetched_at = None;
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

    /// Removes the element and its lock.
    pub(super) fn try_remove(self) -> Removal<P> {
        match self.remove_once() {
            Ok(()) => {
                // The lock was removed with the element.
                self.keep();
                Removal::Done
            }
            // The lock is another process's.
            Err(error @ Error::NotLocked { .. }) => {
                self.keep();
                Removal::Failed(error)
            }
            Err(error) if error.is_passing() => Removal::TryAgain(self, error),
            // Dropping `self` releases the lock.
            Err(error) => Removal::Failed(error),
        }
    }

    fn remove_once(&self) -> Result<(), Error> {
        // If the record cannot be read, the element is removed nevertheless: otherwise, its work would be done again.
        if let Some(delivery) = &self.delivery
            && let Err(error @ Error::NotLocked { .. }) =
                delivery.check(self.queue.root(), &self.name)
        {
            return Err(error);
        }
        self.queue.remove(&self.name)?;
        self.queue.root().shared.metrics.removed();
        if let Some(delivery) = &self.delivery {
            // After the element: a crash in between leaves a record without an element, which a purge removes. In the
            // other order, it would leave an element that has lost its number of attempts.
            delivery.remove_record(self.queue.root(), &self.name);
        }
        Ok(())
    }

    /// Releases the lock. The `outcome` determines when the element is delivered again.
    pub(super) fn unlock(mut self, outcome: &Outcome) -> Result<(), Error> {
        // Cleared first, so that the drop does not unlock again: by then the lock could be another process's.
        let name = mem::replace(&mut self.name, Name::NULL);
        release(&*self.queue, &name, self.delivery, outcome)
    }

    /// Leaves the element locked.
    pub(super) fn keep(mut self) {
        // Not `mem::forget`, which would leak the handle of the queue.
        self.name = Name::NULL;
    }
}

impl<P: Protocol + ?Sized> Drop for LockGuard<P> {
    fn drop(&mut self) {
        if self.name != Name::NULL {
            let (queue, name, delivery) = (self.queue.clone(), self.name, self.delivery);
            let prefetched_at = self.prefetched_at;
            run_detached(&self.queue, move || {
                if !is_lost(&*queue, &name, prefetched_at) {
                    // Errors are ignored: either a purge removed the lock, or a purge will remove it.
                    let _ = release(&*queue, &name, delivery, &Outcome::Dropped);
                }
            });
        }
    }
}

/// Minimum age of a lock that a purge removes, in nanoseconds.
const MIN_MAX_LOCK: i128 = 1_000_000_000;

/// Returns whether the lock of an element that was prefetched at this time is missing, or is another process's.
fn is_lost<P: Protocol + ?Sized>(queue: &P, name: &Name, prefetched_at: Option<i128>) -> bool {
    let Some(prefetched_at) = prefetched_at else { return false };
    let found = queue.lock_time(&queue.root().opener(), name).ok().flatten();
    // A little later is possible: a process that did not get the lock may have touched the element after this one.
    found.is_none_or(|found| found >= prefetched_at + MIN_MAX_LOCK)
}

/// Records the outcome of a delivery and unlocks its element. Streams of this process that wait learn when it can be
/// locked again.
fn release<P: Protocol + ?Sized>(
    queue: &P,
    name: &Name,
    delivery: Option<Delivery>,
    outcome: &Outcome,
) -> Result<(), Error> {
    // Recorded before unlocking: otherwise the element could be delivered according to the old record.
    let recorded = delivery.map(|delivery| delivery.record_unlock(queue.root(), name, outcome));
    let due = match recorded.transpose() {
        // The lock is another process's.
        Err(error @ Error::NotLocked { .. }) => return Err(error),
        due => due,
    };
    queue.unlock(name)?;
    if let Some(wakeups) = queue.root().shared.active_wakeups() {
        // Such an element has not failed, and another stream can have it immediately.
        if delivery.is_some_and(|delivery| !delivery.is_delivered())
            || matches!(outcome, Outcome::Released)
        {
            wakeups.wake_one();
        }
        if let Ok(Some(Some(due))) = due {
            wakeups.set_due_in(Duration::from_micros(due.saturating_sub(now_micros())));
        }
    }
    due.map(drop)
}
