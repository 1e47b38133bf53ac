//! A file system lock as a guard that releases it on drop; and how often a failed removal or release is tried again.

use std::{mem, sync::Arc, thread, time::Duration};

use super::{
    Error, Name,
    blocking::run_detached,
    delivery::{Delivery, DeliveryEnd},
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
    /// The result of recording the outcome, if the lock could not be released afterwards: the time of the next
    /// delivery.
    recorded: Option<Result<Option<u64>, Error>>,
    /// The [time](Protocol::lock_time) of the lock of a prefetched element.
    prefetched_at: Option<i128>,
}

/// The result of an attempt to remove an element, or to release its lock.
pub(super) enum Ended<P: Protocol + ?Sized> {
    Done,
    /// The lock was released, is another process's, or is away with the queue.
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
        Self { queue: queue.clone(), name, delivery: None, recorded: None, prefetched_at: None }
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
        self.check_lost().unwrap_or(true)
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
    pub(super) fn try_remove(self) -> Ended<P> {
        match self.remove_once() {
            Ok(()) => {
                // The lock was removed with the element.
                self.keep();
                Ended::Done
            }
            // The lock is another process's, or away with the queue.
            Err(error @ Error::NotLocked { .. }) => {
                let error = self.queue.root().not_locked_or_away(error);
                self.keep();
                Ended::Failed(error)
            }
            Err(error) if error.is_passing() => Ended::TryAgain(self, error),
            // Dropping `self` releases the lock.
            Err(error) => Ended::Failed(error),
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
    pub(super) fn try_unlock(mut self, outcome: &DeliveryEnd) -> Ended<P> {
        match self.unlock_once(outcome) {
            Ok(()) => Ended::Done,
            Err(error) if self.name != Name::NULL => Ended::TryAgain(self, error),
            Err(error) => Ended::Failed(self.queue.root().not_locked_or_away(error)),
        }
    }

    /// Records the outcome and releases the lock. Streams of this process that wait learn when the element can be
    /// locked again. After an error that passes, only the lock is left to be released, by another call.
    fn unlock_once(&mut self, outcome: &DeliveryEnd) -> Result<(), Error> {
        let root = self.queue.root();
        // Recorded before unlocking: otherwise the element could be delivered according to the old record.
        let recorded = self.recorded.take().unwrap_or_else(|| {
            let delivery = self.delivery.as_ref();
            delivery.map_or(Ok(None), |delivery| delivery.record_unlock(root, &self.name, outcome))
        });
        // Cleared first, so that the drop does not unlock again: by then the lock could be another process's.
        let name = mem::replace(&mut self.name, Name::NULL);
        let due = match recorded {
            // The lock is another process's.
            Err(error @ Error::NotLocked { .. }) => return Err(error),
            due => due,
        };
        match self.queue.unlock(&name) {
            Err(error) if error.is_passing() => {
                (self.name, self.recorded) = (name, Some(due));
                return Err(error);
            }
            unlocked => unlocked?,
        }
        if let Some(wakeups) = root.shared.active_wakeups() {
            // Such an element has not failed, and another stream can have it immediately.
            if self.delivery.is_some_and(|delivery| !delivery.is_delivered())
                || matches!(outcome, DeliveryEnd::Released)
            {
                wakeups.wake_one();
            }
            if let Ok(Some(due)) = due {
                wakeups.set_due_in(Duration::from_micros(due.saturating_sub(now_micros())));
            }
        }
        due.map(drop)
    }

    /// Releases the lock of an element that was dropped, unless it is [lost](Self::is_lost).
    fn release(mut self) {
        let in_memory = self.queue.root().in_memory();
        // In memory, this may be a thread of the runtime, which must not wait.
        let mut pauses = PAUSES.into_iter().filter(|_| !in_memory);
        loop {
            let ended = match self.check_lost() {
                Ok(true) => break,
                Ok(false) => self.unlock_once(&DeliveryEnd::Dropped),
                Err(error) => Err(error),
            };
            match (ended, pauses.next()) {
                (Err(error), Some(pause)) if error.is_passing() && self.name != Name::NULL => {
                    thread::sleep(pause);
                }
                // Errors are ignored: either a purge removed the lock, or a purge will remove it.
                _ => break,
            }
        }
        self.keep();
    }

    fn check_lost(&self) -> Result<bool, Error> {
        let Some(prefetched_at) = self.prefetched_at else { return Ok(false) };
        let found = self.queue.lock_time(&self.queue.root().opener(), &self.name)?;
        // A little later is possible: a process that did not get the lock may have touched the element after this one.
        Ok(found.is_none_or(|found| found >= prefetched_at + MIN_MAX_LOCK))
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
            let guard = Self {
                queue: self.queue.clone(),
                name: mem::replace(&mut self.name, Name::NULL),
                delivery: self.delivery,
                recorded: self.recorded.take(),
                prefetched_at: self.prefetched_at,
            };
            run_detached(&self.queue, move || guard.release());
        }
    }
}

/// Pauses before an element is removed or unlocked again, which together are a second.
pub(super) const PAUSES: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(45),
    Duration::from_millis(250),
    Duration::from_millis(700),
];

/// Smallest age for which a purge of prefetched locks is noticed, in nanoseconds. `Purge::max_lock` documents it.
const MIN_MAX_LOCK: i128 = 1_000_000_000;
