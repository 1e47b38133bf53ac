//! Cache of denials by the server, and how long one counts: a denied key that is checked again too early costs no round
//! trip.
//!
//! 1. A denial holds until the call would pass, as until then other calls can only be charged in addition. So it is
//!    repeated for the same cost and limits. The wait for another cost is known only to the server.
//! 2. A denial ends when this process charges its subject, which extends the wait, or refunds or resets it. A denial
//!    that was in flight during such a change is not cached.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::protocol::Remaining;
use crate::{
    engine::{
        hasher::DefaultHasher,
        shards::default_shards,
        shared_state::SharedState,
        store::{Cause, Entry, Location, Store},
        sweeper::{self, Sweep},
    },
    rate_limit::{Limit, Limited, PerLimit},
};

/// Maximum number of cached denials per subject, each for another cost or other limits.
const MAX_DENIALS: usize = 4;

/// Maximum time for which a denial counts if units are reserved: another process may give some back.
pub(super) const MAX_DENIAL_WITH_RESERVATIONS: Duration = Duration::from_millis(400);

/// Number of versions, which subjects share. The more there are, the rarer a change of one subject prevents the caching
/// of another's denial.
const STRIPES: usize = 64;

/// Denials by subject, in a store like that of a [`Cache`](crate::Cache), whose sweeper removes expired ones.
pub(super) struct DenyCache {
    cache: Arc<SharedState<Vec<u8>, Denials, DefaultHasher>>,
    /// Numbers of changes to the subjects of each stripe.
    versions: [AtomicU64; STRIPES],
    /// Number of times that all denials were invalidated.
    generation: AtomicU64,
}

/// Denials of one subject, oldest first; at most one per cost and limits.
type Denials = Vec<Denial>;

/// A denial by the server.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) limited: Limited,
    pub(super) remaining: PerLimit<Remaining>,
    /// Limits of the call; `None` for the limiter's own.
    pub(super) limits_override: Option<Box<[Limit]>>,
    /// Generation of the cache at that time: the denial is invalid in any other.
    pub(super) generation: u64,
    /// Time until which the denial is certain, counted from before the call. The time in `limited` is counted from the
    /// reply, so that the server admits a retry at that time.
    pub(super) until: Instant,
}

/// Time, location and version of a subject's denials, taken before the call to the server.
#[derive(Clone, Copy)]
pub(super) struct DenyLookup {
    pub(super) asked_at: Instant,
    location: Location,
    version: u64,
    pub(super) generation: u64,
}

impl DenyCache {
    /// Creates a cache for at most `subjects` subjects.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    pub(super) fn new(subjects: usize, name: &str) -> Self {
        let store = Store::new(default_shards(), 0, DefaultHasher::default()).bounded(subjects);
        Self {
            // No cause is published, so the event capacity of 1 is not used.
            cache: sweeper::start(SharedState::new(
                store,
                0,
                1,
                Sweep::default(),
                name.to_owned(),
                false,
            )),
            versions: [const { AtomicU64::new(0) }; STRIPES],
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn look_up(&self, subject: &[u8]) -> DenyLookup {
        let location = self.cache.store.locate(subject);
        // `Relaxed`, twice: with an outdated number, the call counts as made before the change, and its denial is not
        // cached or not found later.
        let generation = self.generation.load(Relaxed);
        let version = self.version_at(location).load(Relaxed);
        DenyLookup { asked_at: Instant::now(), location, version, generation }
    }

    /// Returns the denial that holds for a call, and whether the subject has any denials: if so, a charge must
    /// [`forget`](DenyCache::forget) them.
    pub(super) fn find(
        &self,
        at: DenyLookup,
        subject: &[u8],
        cost: u32,
        limits_override: Option<&[Limit]>,
    ) -> (Option<Denial>, bool) {
        self.cache.store.inspect(at.location, subject, |entry| {
            let Some(entry) = entry else { return (None, false) };
            let holds = |denial: &&Denial| {
                denial.is_for(cost, limits_override)
                    && denial.generation == at.generation
                    && at.asked_at < denial.until
            };
            (entry.value.iter().find(holds).cloned(), true)
        })
    }

    /// Inserts a denial, unless its subject has changed since the look-up.
    pub(super) fn insert(&self, at: DenyLookup, subject: &[u8], denial: Denial) {
        let DenyLookup { location, version, .. } = at;
        let is_current = || self.version_at(location).load(Relaxed) == version;
        let clock = &self.cache.clock;
        let deadline = clock.deadline_of(denial.until);
        let mut denial = Some(denial);
        // Checked under the shard lock, which `forget` takes after it has incremented the version: either the increment
        // is visible here, or the denial inserted here is removed there.
        let changed =
            self.cache.store.change_any(location, subject, |entry: &mut Entry<Denials>| {
                if let Some(denial) = denial.take().filter(|_| is_current()) {
                    let now = Instant::now();
                    let denials = &mut entry.value;
                    denials.retain(|old| {
                        now < old.until
                            && !old.is_for(denial.limited.cost(), denial.limits_override.as_deref())
                    });
                    // Bounds the memory used by callers that vary their costs.
                    if denials.len() == MAX_DENIALS {
                        denials.remove(0);
                    }
                    denials.push(denial);
                    if deadline.is_later_than(entry.deadline()) {
                        entry.set_deadline(deadline);
                    }
                }
            });
        // `vacant` still holds the shard lock, so the check is as valid as the one above.
        if let Err(vacant) = changed
            && is_current()
            && let Some(denial) = denial
        {
            let fresh = || (Entry::new(vec![denial], deadline), ());
            // A full store keeps no further denials.
            let _ = self.cache.store.put_fresh(vacant, || subject.to_vec(), fresh);
        }
    }

    /// Removes the denials of a subject whose state has changed.
    pub(super) fn forget(&self, subject: &[u8]) {
        let location = self.cache.store.locate(subject);
        // Before the lock, see `insert`. `Relaxed` suffices: the shard lock orders it.
        self.version_at(location).fetch_add(1, Relaxed);
        self.cache.store.remove(subject, &self.cache.clock, Cause::Removed);
    }

    /// Invalidates all denials, because the limits have changed.
    pub(super) fn forget_all(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    fn version_at(&self, location: Location) -> &AtomicU64 {
        &self.versions[location.hash() as usize % STRIPES]
    }
}

impl Denial {
    fn is_for(&self, cost: u32, limits_override: Option<&[Limit]>) -> bool {
        self.limited.cost() == cost && self.limits_override.as_deref() == limits_override
    }
}
