use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;

use super::protocol::Left;
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

/// Subjects share a count of changes; more counts make it rarer that one loses a denial by another's change.
const STRIPES: usize = 64;

/// What the server has denied, until it would pass.
///
/// 1. A denial holds until its time comes: meanwhile others can only be charged. So it may be repeated here,
///    for the same cost by the same limits; what another cost has to wait only the server knows.
/// 2. It ends when this process charges its subject, since it has to wait longer then, or takes something
///    back. A denial that was on its way while something was taken back is not kept.
pub(super) struct Denials {
    shared: Arc<SharedState<Vec<u8>, Known, DefaultHasher>>,
    /// How often something ended.
    changes: [AtomicU64; STRIPES],
}

type Known = Vec<Denial>;

/// What the server has denied once.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) limited: Limited,
    pub(super) left: PerLimit<Left>,
    /// By the limits of a call; `None` for the limiter's own.
    pub(super) plan: Option<Box<[Limit]>>,
    /// Until when it is certain: counted from before the server was asked. Who asks is told a time that is
    /// counted from the answer, so that the server agrees.
    pub(super) until: Instant,
}

/// A place for a subject's denials, as of before the server was asked.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    place: Location,
    changes: u64,
}

impl Denials {
    /// Of so many subjects.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub(super) fn new(subjects: usize, name: &str) -> Self {
        let store = Store::new(default_shards(), 0, DefaultHasher::default()).bounded(subjects);
        Self {
            shared: sweeper::start(SharedState::new(
                store,
                0,
                1,
                Sweep::default(),
                name.to_owned(),
            )),
            changes: [const { AtomicU64::new(0) }; STRIPES],
        }
    }

    pub(super) fn ticket(&self, subject: &[u8]) -> Ticket {
        let place = self.shared.store.place(subject);
        Ticket { place, changes: self.changes_at(place).load(Relaxed) }
    }

    /// What is certain at `now` of a call, and whether anything is known of its subject.
    pub(super) fn find(
        &self,
        ticket: Ticket,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
        now: Instant,
    ) -> (Option<Denial>, bool) {
        self.shared.store.inspect(ticket.place, subject, |entry| {
            let Some(entry) = entry else { return (None, false) };
            let holds = |denial: &&Denial| denial.is_of(cost, plan) && now < denial.until;
            (entry.value.iter().find(holds).cloned(), true)
        })
    }

    /// Keeps a denial, where there is room.
    pub(super) fn keep(&self, ticket: Ticket, subject: &[u8], denial: Denial) {
        let Ticket { place, changes } = ticket;
        let is_current = || self.changes_at(place).load(Relaxed) == changes;
        let clock = &self.shared.clock;
        let deadline = clock.deadline_of(denial.until);
        let mut denial = Some(denial);
        let changed = self.shared.store.change_any(place, subject, |entry: &mut Entry<Known>| {
            if let Some(denial) = denial.take().filter(|_| is_current()) {
                let now = Instant::now();
                let known = &mut entry.value;
                known.retain(|old| {
                    now < old.until && !old.is_of(denial.limited.cost, denial.plan.as_deref())
                });
                if known.len() == COSTS {
                    known.remove(0);
                }
                known.push(denial);
                if deadline.is_later_than(entry.deadline) {
                    entry.deadline = deadline;
                }
            }
        });
        if let Err(vacant) = changed
            && is_current()
            && let Some(denial) = denial
        {
            let fresh = || (Entry::new(vec![denial], deadline), ());
            self.shared.store.put_fresh(vacant, || subject.to_vec(), fresh);
        }
    }

    /// Forgets a subject, of which something has changed.
    pub(super) fn forget(&self, subject: &[u8]) {
        let place = self.shared.store.place(subject);
        // Before the shard is locked: who keeps a denial after this sees it, before this is removed.
        self.changes_at(place).fetch_add(1, Relaxed);
        self.shared.store.remove(subject, &self.shared.clock, Cause::Removed);
    }

    fn changes_at(&self, place: Location) -> &AtomicU64 {
        &self.changes[place.hash() as usize % STRIPES]
    }
}

impl Denial {
    fn is_of(&self, cost: u32, plan: Option<&[Limit]>) -> bool {
        self.limited.cost == cost && self.plan.as_deref() == plan
    }
}
