//! Room at the bound: idle keys that are not swept yet leave for a new one.

use std::hash::{BuildHasher, Hash};

use super::key_state::KeyState;
use crate::engine::{
    clock::{LazyNow, Now},
    panics::drop_all,
    state::SharedState,
    store::{Location, LockWait, Store},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How many entries a new key at the bound looks through for one that has left.
const LOOK_FOR_ROOM: usize = 512;

/// How long none is looked for after there was none, in nanoseconds.
const PAUSE: u64 = 1_000_000;

/// Finds room. A flood of new keys can't make it costly: there is a pause after each search in vain, and only shards
/// are locked in which something may be idle.
#[derive(Default)]
pub(super) struct IdleEvictor {
    /// Nothing is looked for before this tick.
    not_before: AtomicU64,
}

impl IdleEvictor {
    /// Lets some keys leave that are idle and not yet swept; tells whether there were any. It locks shards, so the
    /// caller may hold none.
    #[cold]
    pub(super) fn make<K, A, S>(
        &self,
        shared: &SharedState<K, KeyState<A>, S>,
        place: Location,
        now: &LazyNow<'_>,
    ) -> bool
    where
        K: Hash + Eq,
        S: BuildHasher + Clone,
    {
        let now = now.tick();
        if now.nanoseconds() < self.not_before.load(Relaxed) {
            return false;
        }
        let store = &shared.store;
        let mut idle = Vec::new();
        let mut looked_at = 0;
        // From the key's own shard on: others begin elsewhere, and don't queue for the same locks.
        for shard in 0..store.shard_count() {
            let shard = (place.shard() + shard) % store.shard_count();
            if store.has_nothing_due(shard, now) {
                continue;
            }
            let mut pass = Store::<K, KeyState<A>, S>::begin_shard_pass(shard);
            while !pass.is_done() && looked_at < LOOK_FOR_ROOM {
                let all = |buckets| buckets;
                let (clock, wait) = (&shared.clock, LockWait::Wait);
                let window =
                    store.sweep_windows(&mut pass, all, clock, usize::MAX, wait, &mut idle);
                looked_at += window.map_or(0, |window| window.looked_at.max(1));
                if !idle.is_empty() {
                    // Outside of the lock, as keys are dropped by their user's code.
                    drop_all(idle);
                    return true;
                }
            }
        }
        self.not_before.store(now.later(PAUSE).nanoseconds(), Relaxed);
        false
    }
}
