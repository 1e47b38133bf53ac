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
    pub(super) look_every: Option<Duration>,
    /// Of all who need a count, one counts or waits, and the others stand behind: each on a thread of its own, they
    /// would take all that the runtime has for disks.
    pub(super) turn: Semaphore,
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

    pub(super) fn new(max: u64, look_every: Option<Duration>) -> Arc<Self> {
        // A shorter interval would be a busy loop.
        let look_every = look_every.map(|every| every.max(Duration::from_millis(1)));
        let turn = Semaphore::new(1);
        Arc::new(Self {
            max,
            look_every,
            turn,
            left: Mutex::default(),
            under_way: AtomicU64::new(0),
        })
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

    /// Room for so many elements, for which it has those counted that are there where need be.
    pub(super) fn room(
        self: &Arc<Self>,
        count: u64,
        count_all: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<Option<Room>, Error> {
        // Held while it counts: all who wait need what it finds, and what is added meanwhile by this process is either
        // found or still under way.
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left < count {
            // In this order: what comes to be there in between is found twice, and not missed.
            let under_way = self.under_way.load(Acquire);
            let room = self.max.saturating_sub(count_all()?.saturating_add(under_way));
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
