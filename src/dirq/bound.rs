//! How many elements a queue may have, and which adds there is room for.
//!
//! To count at each add would make it as expensive as there are elements. So who has counted gives a part of the room
//! that there is away before it is counted anew, as others add too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::{Error, protocol::Protocol};

/// How many elements a queue may have.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many may be added before they are counted anew.
    left: u64,
    /// How many were let in, and may not be there yet.
    under_way: u64,
}

impl Bound {
    /// This part of the room is given away before it is counted anew. Each of many processes may so add this much too
    /// much.
    const PART: u64 = 8;

    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    /// Room for so many elements, where it is known that there is. It never waits.
    pub(super) fn known_room(self: &Arc<Self>, count: u64) -> Option<Room> {
        // Who counts holds it for as long as a disk is slow.
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (state.left >= count).then(|| self.enter(state, count))
    }

    /// Room for so many elements, for which it counts those that are there where need be.
    pub(super) fn room<P: Protocol>(
        self: &Arc<Self>,
        queue: &P,
        count: u64,
    ) -> Result<Option<Room>, Error> {
        // Held while it counts: all who wait need what it finds, and what is added meanwhile by this process is either
        // found or still under way.
        let mut state = self.state();
        if state.left < count {
            let room = self.max.saturating_sub(queue.count()?.saturating_add(state.under_way));
            if room < count {
                return Ok(None);
            }
            state.left = (room / Self::PART).max(count);
        }
        Ok(Some(self.enter(state, count)))
    }

    fn enter(self: &Arc<Self>, mut state: MutexGuard<'_, State>, count: u64) -> Room {
        state.left -= count;
        state.under_way += count;
        Room { bound: self.clone(), count }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step leaves it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for elements, until they are there, or failed to be.
pub(super) struct Room {
    bound: Arc<Bound>,
    count: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.bound.state().under_way -= self.count;
    }
}
