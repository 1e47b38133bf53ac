//! Units of busy subjects that this process has drawn ahead, to admit checks without a round trip.
//!
//! 1. The server has charged drawn units as calls at the end of their reservation, or later. A unit is admitted only
//!    before that, by a clock that was read before the request was sent. So no unit leaves a window before its call.
//! 2. One call per subject draws at a time. It draws twice as many units as the one before if those were used up, and
//!    half as many if some lapsed.
//! 3. A reservation ends when its units are used or its time has ended, and by a reset or a change of limits. Its other
//!    units are given back. A draw that was in flight during a reset is given back, too.

use std::{
    hash::BuildHasher,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hashbrown::HashTable;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    limit_set::LimitSet,
    protocol::{Charges, Remaining},
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{PerLimit, Window},
};

const SHARDS: usize = 16;

/// Maximum number of subjects per shard. The checks of further ones ask the server.
const MAX_SUBJECTS: usize = 640;

/// Minimum time between two searches of a full shard for subjects that are not busy.
const CLEAN_INTERVAL: Duration = Duration::from_millis(100);

/// Number of checks from which a subject is busy, if none of them comes later than units would lapse.
const MIN_CHECKS: u32 = 4;

pub(super) struct Reservations {
    most: u32,
    /// `None` for the maximum.
    reserve_for: Option<Duration>,
    window: Window,
    hasher: DefaultHasher,
    shards: [Mutex<ReservationShard>; SHARDS],
    /// Units of ended reservations, to be given back by the task of the limiter.
    unused: Mutex<Vec<Unused>>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct ReservationShard {
    /// A table instead of a map, so that a check hashes its subject once.
    subjects: HashTable<Subject>,
    cleaned_at: Option<Instant>,
}

struct Subject {
    subject: Box<[u8]>,
    /// Time of the last check that asked the server.
    asked_at: Instant,
    /// Number of checks that asked the server, each of them soon after the one before.
    checks: u32,
    /// Number of calls for which the next draw draws; 0 if the subject is not busy.
    calls: u32,
    drawn: Option<Drawn>,
    /// The draw that was sent last. Its sender is dropped when it ends, even if its future is dropped.
    draw: Option<watch::Receiver<()>>,
    /// Number of resets.
    version: u64,
}

struct Drawn {
    left: u32,
    batch: Arc<DrawnBatch>,
}

/// Units that were drawn together. Their permits share it, so that a check copies nothing of it.
pub(super) struct DrawnBatch {
    pub(super) subject: Box<[u8]>,
    ahead: u32,
    /// Charges of the units and of the call that drew them.
    charges: Charges,
    all: u32,
    until: Instant,
    /// Remaining quota when they were drawn.
    remaining: PerLimit<Remaining>,
    limits: Arc<LimitSet>,
}

/// Units that a check has taken from a reservation.
pub(super) struct Taken {
    pub(super) batch: Arc<DrawnBatch>,
    /// Units that are still reserved.
    left: u32,
}

/// Units to be given back.
pub(super) struct Unused {
    pub(super) batch: Arc<DrawnBatch>,
    pub(super) units: u32,
}

/// A check that asks the server.
pub(super) enum ServerCheck {
    /// It draws nothing.
    Ask,
    Draw(Draw),
    /// Another check of the subject draws. Nothing is sent to the receiver: its sender is dropped when the draw ends.
    Wait(watch::Receiver<()>),
}

/// Right to draw. Its drop wakes the checks that wait for it.
pub(super) struct Draw {
    pub(super) ahead: u32,
    pub(super) lead: Duration,
    drawn_at: Instant,
    limits: Arc<LimitSet>,
    version: u64,
    _waiters: watch::Sender<()>,
}

impl Reservations {
    pub(super) fn new(most: u32, reserve_for: Option<Duration>, window: Window) -> Self {
        Self {
            most,
            reserve_for,
            window,
            hasher: DefaultHasher::default(),
            shards: Default::default(),
            unused: Default::default(),
            wake: Default::default(),
        }
    }

    /// Returns the signal that there may be reservations or units to give back.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Returns the time for which units are reserved under `limits`.
    pub(super) fn lead(&self, limits: &LimitSet) -> Duration {
        let most = limits.max_reserve_for;
        self.reserve_for.map_or(most, |time| time.min(most))
    }

    /// Takes `cost` units from a reservation, if there is one with that many.
    pub(super) fn take(&self, subject: &[u8], cost: u32) -> Option<Taken> {
        // Not the coarse clock: it may be late, and would admit a unit whose call has left its window on the server.
        let now = Instant::now();
        let hash = self.hasher.hash_one(subject);
        let mut shard = self.shard(hash);
        let drawn = shard.get_mut(hash, subject)?.drawn.as_mut()?;
        if drawn.left < cost || !drawn.is_valid(now) {
            return None;
        }
        drawn.left -= cost;
        Some(Taken { batch: drawn.batch.clone(), left: drawn.left })
    }

    /// Decides how a check asks the server for which no units are reserved.
    pub(super) fn server_check(
        &self,
        subject: &[u8],
        cost: u32,
        limits: &Arc<LimitSet>,
    ) -> ServerCheck {
        let (now, lead) = (Instant::now(), self.lead(limits));
        let mut unused = None;
        let check = {
            let hash = self.hasher.hash_one(subject);
            let mut shard = self.shard(hash);
            match shard.subject(hash, subject, now, lead, &self.hasher) {
                None => ServerCheck::Ask,
                Some(entry) => entry.server_check(self, cost, limits, now, lead, &mut unused),
            }
        };
        self.give_back(unused.and_then(Drawn::unused));
        check
    }

    /// Keeps the units that a draw has drawn ahead, and returns the part of the charges that belongs to its own check.
    pub(super) fn keep(
        &self,
        subject: &[u8],
        draw: Draw,
        cost: u32,
        ahead: u32,
        charges: Charges,
        remaining: &PerLimit<Remaining>,
    ) -> Charges {
        let all = cost.saturating_add(ahead);
        let own = match ahead {
            0 => charges.clone(),
            _ => charges.part(cost, all, self.window),
        };
        // A thousandth less, as the clocks of two machines do not run equally fast.
        let until = draw.drawn_at + (draw.lead - draw.lead / 1_000);
        let (remaining, limits) = (remaining.clone(), draw.limits.clone());
        let subject = subject.into();
        let batch = DrawnBatch { subject, ahead, charges, all, until, remaining, limits };
        let batch = Arc::new(batch);
        let mut unused = (ahead > 0).then(|| Drawn { left: ahead, batch: batch.clone() });
        let hash = self.hasher.hash_one(&*batch.subject);
        if let Some(entry) = self.shard(hash).get_mut(hash, &batch.subject)
            && entry.version == draw.version
        {
            if ahead < draw.ahead {
                // So little is left that the next calls ask for each unit.
                (entry.calls, entry.checks) = (ahead / cost, 0);
            }
            if unused.is_some() {
                unused = mem::replace(&mut entry.drawn, unused);
            }
        }
        self.give_back(unused.and_then(Drawn::unused));
        self.wake.notify_one();
        own
    }

    /// Ends the reservation of a subject that is being reset, and returns its units.
    pub(super) fn forget(&self, subject: &[u8]) -> Option<Unused> {
        let drawn = {
            let hash = self.hasher.hash_one(subject);
            let mut shard = self.shard(hash);
            let entry = shard.get_mut(hash, subject)?;
            entry.version += 1;
            entry.drawn.take()
        };
        drawn?.unused()
    }

    /// Returns the number of units of a subject that are reserved.
    pub(super) fn left(&self, subject: &[u8]) -> u32 {
        let (now, hash) = (Instant::now(), self.hasher.hash_one(subject));
        let mut shard = self.shard(hash);
        let drawn = shard.get_mut(hash, subject).and_then(|entry| entry.drawn.as_ref());
        drawn.filter(|drawn| drawn.is_valid(now)).map_or(0, |drawn| drawn.left)
    }

    /// Ends the reservation of a subject and returns its units, if there are at least `least`.
    pub(super) fn end(&self, subject: &[u8], least: u32) -> Option<Unused> {
        let hash = self.hasher.hash_one(subject);
        let mut shard = self.shard(hash);
        let drawn = &mut shard.get_mut(hash, subject)?.drawn;
        drawn.take_if(|drawn| drawn.left >= least)?.unused()
    }

    /// Has the task of the limiter give units back.
    pub(super) fn give_back(&self, unused: Option<Unused>) {
        if let Some(unused) = unused {
            self.unused.lock().unwrap_or_else(PoisonError::into_inner).push(unused);
            self.wake.notify_one();
        }
    }

    /// Ends the reservations that are no longer valid, and returns their units, and whether there are others.
    pub(super) fn take_lapsed(&self, now: Instant) -> (Vec<Unused>, bool) {
        let mut unused =
            mem::take(&mut *self.unused.lock().unwrap_or_else(PoisonError::into_inner));
        let mut has_others = false;
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in &mut shard.subjects {
                if let Some(drawn) =
                    entry.drawn.take_if(|drawn| drawn.left == 0 || !drawn.is_valid(now))
                {
                    if drawn.left > 0 {
                        entry.calls /= 2;
                    }
                    unused.extend(drawn.unused());
                }
                has_others |= entry.drawn.is_some();
            }
        }
        (unused, has_others)
    }

    /// Ends all reservations, since the limiter is dropped.
    pub(super) fn take_all(&mut self) -> Vec<Unused> {
        let mut unused = mem::take(self.unused.get_mut().unwrap_or_else(PoisonError::into_inner));
        for shard in &mut self.shards {
            let shard = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            let drawn = shard.subjects.drain().filter_map(|entry| entry.drawn);
            unused.extend(drawn.filter_map(Drawn::unused));
        }
        unused
    }

    /// Locks the shard of the subjects with this hash.
    fn shard(&self, hash: u64) -> MutexGuard<'_, ReservationShard> {
        // By other bits than those by which its table chooses a bucket.
        self.shards[(hash >> 40) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReservationShard {
    fn get_mut(&mut self, hash: u64, subject: &[u8]) -> Option<&mut Subject> {
        self.subjects.find_mut(hash, |entry| *entry.subject == *subject)
    }

    /// Returns the entry of a subject, or `None` if it has none and the shard is full of busy ones.
    fn subject(
        &mut self,
        hash: u64,
        subject: &[u8],
        now: Instant,
        lead: Duration,
        hasher: &DefaultHasher,
    ) -> Option<&mut Subject> {
        if self.subjects.len() >= MAX_SUBJECTS && self.get_mut(hash, subject).is_none() {
            let interval = lead.max(CLEAN_INTERVAL);
            if self.cleaned_at.is_some_and(|at| now < at + interval) {
                return None;
            }
            self.cleaned_at = Some(now);
            self.subjects.retain(|entry| entry.is_busy(now, lead));
            if self.subjects.len() >= MAX_SUBJECTS {
                return None;
            }
        }
        let is_it = |entry: &Subject| *entry.subject == *subject;
        let hash_of = |entry: &Subject| hasher.hash_one(&*entry.subject);
        let entry = self.subjects.entry(hash, is_it, hash_of).or_insert_with(|| Subject {
            subject: subject.into(),
            asked_at: now,
            checks: 0,
            calls: 0,
            drawn: None,
            draw: None,
            version: 0,
        });
        Some(entry.into_mut())
    }
}

impl Subject {
    fn server_check(
        &mut self,
        all: &Reservations,
        cost: u32,
        limits: &Arc<LimitSet>,
        now: Instant,
        lead: Duration,
        unused: &mut Option<Drawn>,
    ) -> ServerCheck {
        if let Some(draw) = self.draw.as_ref().filter(|draw| is_in_flight(draw)) {
            return ServerCheck::Wait(draw.clone());
        }
        let used_up = match &self.drawn {
            None => false,
            Some(drawn) if drawn.is_valid(now) => {
                if drawn.left > drawn.batch.ahead / 2 {
                    // A call that costs more than others: their units stay reserved.
                    return ServerCheck::Ask;
                }
                true
            }
            Some(drawn) => {
                if drawn.left > 0 {
                    self.calls /= 2;
                }
                false
            }
        };
        *unused = self.drawn.take();
        if !self.was_asked_within(lead, now) {
            self.checks = 0;
        }
        // Twice: units that lasted until they lapsed are drawn again.
        if !self.was_asked_within(2 * lead, now) {
            self.calls = 0;
        }
        (self.asked_at, self.checks) = (now, self.checks.saturating_add(1));
        if used_up {
            self.calls = self.calls.saturating_mul(2);
        }
        if self.calls == 0 && self.checks >= MIN_CHECKS {
            self.calls = 1;
        }
        if self.calls == 0 {
            return ServerCheck::Ask;
        }
        self.calls = self.calls.min(all.most);
        let (waiters, draw) = watch::channel(());
        self.draw = Some(draw);
        ServerCheck::Draw(Draw {
            ahead: self.calls.saturating_mul(cost).min(all.most),
            lead,
            drawn_at: now,
            limits: limits.clone(),
            version: self.version,
            _waiters: waiters,
        })
    }

    fn is_busy(&self, now: Instant, lead: Duration) -> bool {
        self.drawn.is_some()
            || self.draw.as_ref().is_some_and(is_in_flight)
            || self.calls > 0 && self.was_asked_within(2 * lead, now)
    }

    fn was_asked_within(&self, time: Duration, now: Instant) -> bool {
        now.duration_since(self.asked_at) <= time
    }
}

impl Drawn {
    fn is_valid(&self, now: Instant) -> bool {
        now < self.batch.until && self.batch.limits.is_current()
    }

    /// Returns the units that no check has used.
    fn unused(self) -> Option<Unused> {
        (self.left > 0).then_some(Unused { batch: self.batch, units: self.left })
    }
}

impl DrawnBatch {
    /// Returns the part of the charges that is due to `units` of the batch.
    pub(super) fn part(&self, units: u32, window: Window) -> Charges {
        self.charges.part(units, self.all, window)
    }
}

impl Taken {
    /// Returns the remaining quota of each limit, with the units that are still reserved.
    pub(super) fn remaining(&self) -> PerLimit<Remaining> {
        with_reserved(self.batch.remaining.clone(), self.left)
    }

    /// Returns the minimum of [`remaining`](Self::remaining).
    pub(super) fn least_remaining(&self) -> u32 {
        let least = self.batch.remaining.iter().map(|quota| quota.remaining).min();
        least.unwrap_or(u32::MAX).saturating_add(self.left)
    }
}

fn is_in_flight(draw: &watch::Receiver<()>) -> bool {
    draw.has_changed().is_ok()
}

/// Adds the units that this process has reserved to the remaining quota.
pub(super) fn with_reserved(
    mut remaining: PerLimit<Remaining>,
    reserved: u32,
) -> PerLimit<Remaining> {
    for quota in &mut *remaining {
        quota.remaining = quota.remaining.saturating_add(reserved);
    }
    remaining
}
