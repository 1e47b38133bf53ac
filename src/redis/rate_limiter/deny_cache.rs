//! What the server has denied, until it would pass: who is denied and asks again at once costs no round trip.
//!
//! 1. A denial holds until its time comes: meanwhile others can only be charged. So it may be repeated here,
//!    for the same cost by the same limits; what another cost has to wait only the server knows.
//! 2. It ends when this process charges its subject, since it has to wait longer then, or takes something
//!    back. A denial that was on its way while something was taken back is not kept.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;

use super::protocol::Remaining;
use crate::{
    engine::{
        hasher::DefaultHasher,
        shards::default_shards,
        state::SharedState,
        store::{Cause, Entry, Location, Store},
        sweeper::{self, Sweep},
    },
    rate_limit::{Limit, Limited, PerLimit},
};

/// Denials of so many costs and plans are kept for one subject.
const COSTS: usize = 4;

/// Subjects share a version; more of them make it rarer that one loses a denial by another's change.
const STRIPES: usize = 64;

/// By subject. A store like that of a [`Cache`](crate::Cache), whose sweeper forgets denials that are over.
pub(super) struct DenyCache {
    cache: Arc<SharedState<Vec<u8>, Denials, DefaultHasher>>,
    /// How often something ended, for all subjects of a stripe.
    versions: [AtomicU64; STRIPES],
    /// How often all ended.
    generation: AtomicU64,
}

/// Of one subject, the oldest first; of each cost by each plan one at most.
type Denials = Vec<Denial>;

/// What the server has denied once.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) limited: Limited,
    pub(super) remaining: PerLimit<Remaining>,
    /// By the limits of a call; `None` for the limiter's own.
    pub(super) plan: Option<Box<[Limit]>>,
    /// When this is another, it has ended.
    pub(super) generation: u64,
    /// Until when it is certain: counted from before the server was asked. Who asks is told a time that is
    /// counted from the answer, so that the server agrees.
    pub(super) until: Instant,
}

/// Where a subject's denials are, as of before the server was asked.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    location: Location,
    version: u64,
    pub(super) generation: u64,
}

impl DenyCache {
    /// Of so many subjects.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub(super) fn new(subjects: usize, name: &str) -> Self {
        let store = Store::new(default_shards(), 0, DefaultHasher::default()).bounded(subjects);
        Self {
            cache: sweeper::start(SharedState::new(store, 0, 1, Sweep::default(), name.to_owned())),
            versions: [const { AtomicU64::new(0) }; STRIPES],
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn look_up(&self, subject: &[u8]) -> Lookup {
        let location = self.cache.store.place(subject);
        let generation = self.generation.load(Relaxed);
        Lookup { location, version: self.version_at(location).load(Relaxed), generation }
    }

    /// What is certain at `now` of a call, and whether anything is known of its subject: then a charge must
    /// [`forget`](DenyCache::forget) it.
    pub(super) fn find(
        &self,
        at: Lookup,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
        now: Instant,
    ) -> (Option<Denial>, bool) {
        self.cache.store.inspect(at.location, subject, |entry| {
            let Some(entry) = entry else { return (None, false) };
            let holds = |denial: &&Denial| {
                denial.is_of(cost, plan) && denial.generation == at.generation && now < denial.until
            };
            (entry.value.iter().find(holds).cloned(), true)
        })
    }

    /// Keeps a denial, where there is room.
    pub(super) fn keep(&self, at: Lookup, subject: &[u8], denial: Denial) {
        let Lookup { location, version, .. } = at;
        let is_current = || self.version_at(location).load(Relaxed) == version;
        let clock = &self.cache.clock;
        let deadline = clock.deadline_of(denial.until);
        let mut denial = Some(denial);
        // Under the shard's lock, which `forget` takes after it has changed the version: either its change is
        // seen here, or what is kept here is removed there.
        let changed =
            self.cache.store.change_any(location, subject, |entry: &mut Entry<Denials>| {
                if let Some(denial) = denial.take().filter(|_| is_current()) {
                    let now = Instant::now();
                    let denials = &mut entry.value;
                    denials.retain(|old| {
                        now < old.until && !old.is_of(denial.limited.cost(), denial.plan.as_deref())
                    });
                    // Who asks with ever other costs must not fill the memory.
                    if denials.len() == COSTS {
                        denials.remove(0);
                    }
                    denials.push(denial);
                    if deadline.is_later_than(entry.deadline()) {
                        entry.set_deadline(deadline);
                    }
                }
            });
        // The shard is still locked, by `vacant`: the version is as good as above.
        if let Err(vacant) = changed
            && is_current()
            && let Some(denial) = denial
        {
            let fresh = || (Entry::new(vec![denial], deadline), ());
            self.cache.store.put_fresh(vacant, || subject.to_vec(), fresh);
        }
    }

    /// Forgets a subject, of which something has changed.
    pub(super) fn forget(&self, subject: &[u8]) {
        let location = self.cache.store.place(subject);
        // Before the shard is locked: who keeps a denial after this sees it, before this is removed.
        self.version_at(location).fetch_add(1, Relaxed);
        self.cache.store.remove(subject, &self.cache.clock, Cause::Removed);
    }

    /// Ends all: the limits have changed.
    pub(super) fn forget_all(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    fn version_at(&self, location: Location) -> &AtomicU64 {
        &self.versions[location.hash() as usize % STRIPES]
    }
}

impl Denial {
    fn is_of(&self, cost: u32, plan: Option<&[Limit]>) -> bool {
        self.limited.cost() == cost && self.plan.as_deref() == plan
    }
}
