//! Eviction of idle keys that are not swept yet, in favor of a new key at the bound.

use std::hash::{BuildHasher, Hash};

use super::key_state::KeyState;
use crate::engine::{
    clock::{LazyNow, Now, Tick},
    panics::drop_all,
    shared_state::SharedState,
    store::{Location, LockWait, StepLimits, Store},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Maximum number of entries that a new key at the bound examines for an idle one. Two windows of a default sweep, each
/// of which holds a lock for about 2 µs (`docs/architecture.md`).
const MAX_EXAMINED: usize = 512;

/// Pause after an unsuccessful search, in nanoseconds. Without it, each check of a flood, which takes about 90 ns
/// (`docs/rate-limit.md`), would search for microseconds.
const SEARCH_PAUSE: u64 = 1_000_000;

/// Search for idle keys. A flood of new keys cannot make it costly: unsuccessful searches are followed by a pause, and
/// only shards are locked that may contain an idle key.
#[derive(Default)]
pub(super) struct IdleEvictor {
    /// Tick before which no search starts.
    not_before: AtomicU64,
}

impl IdleEvictor {
    /// Returns `true` unless a search was unsuccessful a short time ago.
    pub(super) fn is_due(&self, now: &LazyNow<'_>) -> bool {
        now.has_reached(Tick::from_nanoseconds(self.not_before.load(Relaxed)))
    }

    /// Removes some keys that are idle and not yet swept, if there are any. It locks shards, so the caller must not
    /// hold a shard's lock.
    #[cold]
    pub(super) fn evict_idle<K, A, S>(
        &self,
        shared: &SharedState<K, KeyState<A>, S>,
        place: Location,
        now: &LazyNow<'_>,
    ) where
        K: Hash + Eq,
        S: BuildHasher + Clone,
    {
        let now = now.tick();
        let store = &shared.store;
        let mut idle = Vec::new();
        let mut examined = 0;
        // Starting at the key's own shard: concurrent searches then start at different locks.
        for shard in 0..store.shard_count() {
            let shard = (place.shard() + shard) % store.shard_count();
            if store.has_nothing_due(shard, now) {
                continue;
            }
            let mut shard_pass = Store::<K, KeyState<A>, S>::begin_shard_pass(shard);
            while !shard_pass.is_done() && examined < MAX_EXAMINED {
                let all = |buckets| buckets;
                let clock = &shared.clock;
                let limits = StepLimits { max_expired: usize::MAX, lock_wait: LockWait::Wait };
                let window = store.sweep_windows(&mut shard_pass, all, clock, limits, &mut idle);
                // At least 1, so that windows that the expiry index skips also bring the search to an end.
                examined += window.map_or(0, |window| window.looked_at.max(1));
                if !idle.is_empty() {
                    // Dropped after the lock is released, since the drop of a key is user code.
                    drop_all(idle);
                    return;
                }
            }
        }
        // `Relaxed`, and no exchange: a concurrent search that starts in the meantime only costs time.
        self.not_before.store(now.later(SEARCH_PAUSE).nanoseconds(), Relaxed);
    }
}
