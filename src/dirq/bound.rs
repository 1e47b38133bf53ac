//! How many elements a queue may have, and which adds there is room for.
//!
//! To count at each add would make it as expensive as there are elements. So who has counted gives a part of the room
//! that there is away before it is counted anew, as others add too.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{Error, protocol::Protocol};

/// How many elements a queue may have.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) max: u64,
    /// How many may be added before they are counted anew.
    left: Mutex<u64>,
    /// How many were let in, and may not be there yet. Apart, as who has added may be a thread of the runtime, and must
    /// not wait for one who counts.
    under_way: AtomicU64,
}

impl Bound {
    /// This part of the room is given away before it is counted anew. Each of many processes may so add this much too
    /// much.
    const PART: u64 = 8;

    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, left: Mutex::default(), under_way: AtomicU64::new(0) })
    }

    /// Room for so many elements, where it is known that there is. It never waits.
    pub(super) fn known_room(self: &Arc<Self>, count: u64) -> Option<Room> {
        // Who counts holds it for as long as a disk is slow.
        let left = match self.left.try_lock() {
            Ok(left) => left,
            // No step leaves it wrong.
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (*left >= count).then(|| self.enter(left, count))
    }

    /// Room for so many elements, for which it counts those that are there where need be.
    pub(super) fn room<P: Protocol>(
        self: &Arc<Self>,
        queue: &P,
        count: u64,
    ) -> Result<Option<Room>, Error> {
        // Held while it counts: all who wait need what it finds, and what is added meanwhile by this process is either
        // found or still under way.
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left < count {
            // In this order: what comes to be there in between is found twice, and not missed.
            let under_way = self.under_way.load(Acquire);
            let room = self.max.saturating_sub(queue.count()?.saturating_add(under_way));
            if room < count {
                return Ok(None);
            }
            *left = (room / Self::PART).max(count);
        }
        Ok(Some(self.enter(left, count)))
    }

    fn enter(self: &Arc<Self>, mut left: MutexGuard<'_, u64>, count: u64) -> Room {
        *left -= count;
        self.under_way.fetch_add(count, Relaxed);
        Room { bound: self.clone(), count }
    }
}

/// Room for elements, until they are there, or failed to be.
pub(super) struct Room {
    bound: Arc<Bound>,
    count: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        // Who sees it gone finds the elements.
        self.bound.under_way.fetch_sub(self.count, Release);
    }
}
