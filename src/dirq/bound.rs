//! The bound of a queue, and the permits for adds within it.
//!
//! Counting the elements at each add would make each add as expensive as the queue is long. Therefore each count grants
//! an allowance: a fraction of the free capacity that may be added before the next count. It is only a fraction because
//! other processes add too.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use super::{Error, mutex::lock};

/// The maximum number of elements of a queue.
#[derive(Debug)]
pub(super) struct QueueBound {
    pub(super) max: u64,
    /// Interval at which a waiting add checks for free capacity; `None` if adds do not wait.
    pub(super) poll_interval: Option<Duration>,
    /// Held by the caller that counts or waits for capacity; others queue here. Otherwise each would block a thread of
    /// its own, and all of them could occupy every blocking thread of the runtime.
    pub(super) count_permit: Semaphore,
    /// Number of elements that may be added before the next count.
    allowance: Mutex<u64>,
    /// Elements with a permit that may not be in the queue yet. Not under the lock: a permit may be dropped on a thread
    /// of the runtime, which must not wait for a count.
    in_flight: AtomicU64,
}

impl QueueBound {
    /// Divisor of the free capacity that gives the allowance. Each of several processes may exceed the bound by that
    /// much.
    const ALLOWANCE_DIVISOR: u64 = 8;

    pub(super) fn new(max: u64, poll_interval: Option<Duration>) -> Arc<Self> {
        // A shorter interval would be a busy loop.
        let poll_interval = poll_interval.map(|every| every.max(Duration::from_millis(1)));
        let count_permit = Semaphore::new(1);
        Arc::new(Self {
            max,
            poll_interval,
            count_permit,
            allowance: Mutex::default(),
            in_flight: AtomicU64::new(0),
        })
    }

    /// Returns a permit for `count` elements if the allowance covers them. Never blocks.
    pub(super) fn try_reserve(self: &Arc<Self>, count: u64) -> Option<CapacityPermit> {
        // A thread that counts holds the lock for as long as the disk takes.
        let allowance = match self.allowance.try_lock() {
            Ok(allowance) => allowance,
            // The value is consistent at every point where a thread can panic.
            Err(TryLockError::Poisoned(allowance)) => allowance.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (*allowance >= count).then(|| self.grant(allowance, count))
    }

    /// Returns a permit for `count` elements, or the free capacity if that is less. Counts the elements if the
    /// allowance is used up.
    pub(super) fn reserve(
        self: &Arc<Self>,
        count: u64,
        count_all: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<Result<CapacityPermit, u64>, Error> {
        // Held during the count: all waiters need its result. An element that this process adds in the meantime is
        // either counted or still in flight.
        let mut allowance = lock(&self.allowance);
        if *allowance < count {
            // Loaded before the count: an element that is added in between is counted twice, and not missed. `Acquire`
            // pairs with the `Release` in `CapacityPermit::drop`: if a permit's end is seen, the count sees its
            // elements.
            let in_flight = self.in_flight.load(Acquire);
            let free = self.max.saturating_sub(count_all()?.saturating_add(in_flight));
            if free < count {
                return Ok(Err(free));
            }
            *allowance = (free / Self::ALLOWANCE_DIVISOR).max(count);
        }
        Ok(Ok(self.grant(allowance, count)))
    }

    fn grant(self: &Arc<Self>, mut allowance: MutexGuard<'_, u64>, count: u64) -> CapacityPermit {
        *allowance -= count;
        // `Relaxed`: a count loads it under the lock that is held here.
        self.in_flight.fetch_add(count, Relaxed);
        CapacityPermit { bound: self.clone(), count }
    }
}

/// Decides whether others may go first while an add waits for capacity.
///
/// An add of several elements lets others go first for a number of intervals, because it would block all small ones for
/// as long as it waits. Then the others wait, because small adds could use all capacity before there is enough for the
/// large one. They wait as long as capacity becomes free, and for the same number of intervals after that.
pub(super) struct Fairness {
    lets_others_go: bool,
    intervals_left: u32,
    free: u64,
}

impl Fairness {
    const INTERVALS: u32 = 100;

    pub(super) fn new(count: u64) -> Self {
        Self { lets_others_go: count > 1, intervals_left: Self::INTERVALS, free: 0 }
    }

    /// Returns whether others may go first during the next interval, at the present free capacity, which is not
    /// sufficient for `count` elements.
    pub(super) fn let_others_go(&mut self, count: u64, free: u64) -> bool {
        let grows = free > self.free;
        self.free = free;
        if grows && !self.lets_others_go {
            self.intervals_left = Self::INTERVALS;
        } else if self.intervals_left == 0 {
            self.lets_others_go = count > 1 && !self.lets_others_go;
            self.intervals_left = Self::INTERVALS;
        }
        self.intervals_left -= 1;
        self.lets_others_go
    }
}

/// The permission to add elements, held until they are in the queue or failed to be added.
pub(super) struct CapacityPermit {
    bound: Arc<QueueBound>,
    count: u64,
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        // `Release` after the add: if a count sees the lower number, it also sees the elements.
        self.bound.in_flight.fetch_sub(self.count, Release);
    }
}
