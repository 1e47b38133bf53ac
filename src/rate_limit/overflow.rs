//! Keys beyond [`max_keys`](super::RateLimiterBuilder::max_keys): first some that are idle leave for them; where none
//! is, they share one state, so that nobody gets off by asking under many names.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    algorithm::Algorithm,
    check::Check,
    key_state::{Admitted, Denied, KeyState},
    stats::CheckCounts,
};
use crate::engine::{
    clock::{Now, Tick},
    panics::drop_all,
    state::SharedState,
    store::{Location, Patience, Store},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How many entries a new key at the bound looks through for one that has left.
const LOOK_FOR_ROOM: usize = 512;

/// What keys beyond the bound share. Its state has the id 0, which no key's has.
pub(super) struct Overflow<A> {
    /// Locked under a shard's lock at times, so no shard is locked under it.
    state: Mutex<KeyState<A>>,
    /// Until which tick something of the state is in use. Beside its lock, which each new key would have to take
    /// else, also where the bound was never reached.
    until: AtomicU64,
    pub(super) counts: CheckCounts,
}

impl<A: Algorithm> Overflow<A> {
    pub(super) fn new(limits: usize) -> Self {
        Self {
            state: Mutex::new(KeyState::new(0, limits)),
            until: AtomicU64::new(0),
            counts: CheckCounts::default(),
        }
    }

    /// Charges a key beyond the bound. Returns which state was charged.
    #[cold]
    pub(super) fn charge(
        &self,
        check: &Check<'_>,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<(u64, Admitted), Denied> {
        let mut state = self.lock();
        let charged = state.charge(check.rules, &check.now, check.cost);
        let until = state.idle_from(check.rules).map_or(0, Tick::nanoseconds);
        // A plan of shorter windows takes nothing from what others have in use.
        self.until.fetch_max(until, Relaxed);
        self.counts.count(charged.is_err());
        inspect(&state, check);
        charged.map(|admitted| (state.id, admitted))
    }

    /// What a new key begins with. One that was beyond the bound takes along what it had in use there, as does any
    /// other new one: nobody knows which they were.
    pub(super) fn first_state(&self, check: &Check<'_>) -> KeyState<A> {
        let until = Tick::from_nanoseconds(self.until.load(Relaxed));
        match check.now.has_reached(until) {
            true => KeyState::new(0, check.rules.len()),
            false => self.lock().clone(),
        }
    }
}

impl<A> Overflow<A> {
    pub(super) fn lock(&self) -> MutexGuard<'_, KeyState<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets some keys leave that are idle and not yet swept; tells whether there were any. It looks at so few that a
/// flood of new keys can't make it costly. It locks shards, so the caller may hold none.
#[cold]
pub(super) fn make_room<K, A, S>(shared: &SharedState<K, KeyState<A>, S>, place: Location) -> bool
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    let store = &shared.store;
    let mut idle = Vec::new();
    let mut looked_at = 0;
    // From the key's own shard on: others begin elsewhere, and don't queue for the same locks.
    for shard in 0..store.shard_count() {
        let shard = (place.shard() + shard) % store.shard_count();
        let mut pass = Store::<K, KeyState<A>, S>::visit(shard);
        while !pass.is_done() && looked_at < LOOK_FOR_ROOM {
            let all = |buckets| buckets;
            let (clock, wait) = (&shared.clock, Patience::Wait);
            let window = store.sweep_windows(&mut pass, all, clock, usize::MAX, wait, &mut idle);
            looked_at += window.map_or(0, |window| window.looked_at);
            if !idle.is_empty() {
                // Outside of the lock, as keys are dropped by their user's code.
                drop_all(idle);
                return true;
            }
        }
    }
    false
}
