//! How many elements a queue may have, and which adds there is room for.
//!
//! To count at each add would make it as expensive as there are elements. So who has counted gives a part of the room
//! that there is away before it is counted anew, as others add too.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use super::Error;

/// How many elements a queue may have.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) max: u64,
    /// How often who waits for room looks for it; none where nobody waits.
    pub(super) poll_interval: Option<Duration>,
    /// Of all who need a count, one counts or waits, and the others stand behind: each on a thread of its own, they
    /// would take all that the runtime has for disks.
    pub(super) count_permit: Semaphore,
    /// How many may be added before they are counted anew.
    allowance: Mutex<u64>,
    /// How many were let in, and may not be there yet. Apart, as who has added may be a thread of the runtime, and must
    /// not wait for one who counts.
    in_flight: AtomicU64,
}

impl Bound {
    /// This part of the room is given away before it is counted anew. Each of many processes may so add this much too
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

    /// CapacityPermit for so many elements, where it is known that there is. It never waits.
    pub(super) fn try_reserve(self: &Arc<Self>, count: u64) -> Option<CapacityPermit> {
        // Who counts holds it for as long as a disk is slow.
        let allowance = match self.allowance.try_lock() {
            Ok(allowance) => allowance,
            // No step leaves it wrong.
            Err(TryLockError::Poisoned(allowance)) => allowance.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (*allowance >= count).then(|| self.grant(allowance, count))
    }

    /// CapacityPermit for so many elements, for which it has those counted that are there where need be.
    pub(super) fn reserve(
        self: &Arc<Self>,
        count: u64,
        count_all: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<Option<CapacityPermit>, Error> {
        // Held while it counts: all who wait need what it finds, and what is added meanwhile by this process is either
        // found or still under way.
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        if *allowance < count {
            // In this order: what comes to be there in between is found twice, and not missed.
            let in_flight = self.in_flight.load(Acquire);
            let free = self.max.saturating_sub(count_all()?.saturating_add(in_flight));
            if free < count {
                return Ok(None);
            }
            *allowance = (free / Self::ALLOWANCE_DIVISOR).max(count);
        }
        Ok(Some(self.grant(allowance, count)))
    }

    fn grant(self: &Arc<Self>, mut allowance: MutexGuard<'_, u64>, count: u64) -> CapacityPermit {
        *allowance -= count;
        self.in_flight.fetch_add(count, Relaxed);
        CapacityPermit { bound: self.clone(), count }
    }
}

/// CapacityPermit for elements, until they are there, or failed to be.
pub(super) struct CapacityPermit {
    bound: Arc<Bound>,
    count: u64,
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        // Who sees it gone finds the elements.
        self.bound.in_flight.fetch_sub(self.count, Release);
    }
}
