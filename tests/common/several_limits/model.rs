//! The model: all calls of a key at each position, and the bounds that the rules set for the next call.
//!
//! A *lower bound* is usage that the limiter must count: if it is exceeded, a call was admitted above a limit. An
//! *upper bound* is usage that it may count: a denial needs at least that much. They differ where the contract leaves
//! room: `Buckets` count a call for up to a bucket longer, and a limit that is used for the first time knows the
//! calls of others only as well as those do.

use fleeting::{Limit, Window};

use super::micros;

/// Identity of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) quota: u64,
    pub(super) per: u64,
}

impl Id {
    pub(super) fn of(limit: &Limit) -> Self {
        Self { quota: limit.quota().into(), per: micros(limit.per()) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Charge {
    /// Number of the call; `None` for a debt.
    call: Option<usize>,
    at: u64,
    /// Units that were charged.
    gross: u64,
    /// Units without what was taken back.
    net: u64,
    /// Limit that admitted the call. `None` if it is unknown, which a debt after a change of the limits may be.
    by: Option<Id>,
    /// False if only the limits before or after a change count it.
    is_certain: bool,
    /// True if another call was charged before units were taken back: then GCRA may take back less.
    is_inexact: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A check by a limit, admitted or denied.
    Used(Id, u64),
    Charged(Charge),
}

/// Usage of one key at one position among the limits of its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    events: Vec<Event>,
}

/// Usage that the limiter may count: units that leave, or the level of a bucket, in parts, that leaks.
enum Upper {
    Leaving(Vec<(u64, u64)>),
    Level(u128),
}

/// Charge as the model of `Buckets` places it in rings.
struct Placed {
    at: u64,
    /// Length of the limit that admitted the call.
    by: Option<u64>,
    units: u64,
    /// Latest time to which the ring of the limit may assign it.
    here: u64,
    /// Latest time to which the ring of any limit may assign it.
    anywhere: u64,
}

/// A bucket that leaks: `quota` parts per microsecond. A unit has `per` parts.
struct Leaking {
    id: Id,
    level: u128,
    at: u64,
}

impl Leaking {
    fn new(id: Id) -> Self {
        Self { id, level: 0, at: 0 }
    }

    fn capacity(&self) -> u128 {
        self.parts(self.id.quota)
    }

    fn parts(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.id.per)
    }

    fn leak(&mut self, now: u64) {
        let leaked = u128::from(now - self.at) * u128::from(self.id.quota);
        (self.level, self.at) = (self.level.saturating_sub(leaked), now);
    }

    /// Adds units of another limit, which fill the bucket at most.
    fn note(&mut self, units: u64) {
        self.level = self.level.max(self.capacity().min(self.level + self.parts(units)));
    }
}

impl Position {
    pub(super) fn used(&mut self, limit: &Limit, now: u64) {
        self.events.push(Event::Used(Id::of(limit), now));
    }

    pub(super) fn charged(&mut self, call: usize, at: u64, units: u64, by: Id) {
        let charge = Charge {
            call: Some(call),
            at,
            gross: units,
            net: units,
            by: Some(by),
            is_certain: true,
            is_inexact: false,
        };
        self.events.push(Event::Charged(charge));
    }

    pub(super) fn debt(&mut self, at: u64, units: u64, by: Option<Id>, is_certain: bool) {
        let is_inexact = false;
        let charge =
            Charge { call: None, at, gross: units, net: units, by, is_certain, is_inexact };
        self.events.push(Event::Charged(charge));
    }

    /// Sets the final cost of a call.
    pub(super) fn correct(&mut self, call: usize, units: u64) {
        let mut is_last = true;
        for event in self.events.iter_mut().rev() {
            let Event::Charged(charge) = event else { continue };
            if charge.call == Some(call) {
                charge.net = units;
                charge.is_inexact = !is_last;
            }
            is_last = false;
        }
    }

    fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.events.iter().filter_map(|event| match event {
            Event::Charged(charge) => Some(charge),
            Event::Used(..) => None,
        })
    }

    /// Units of the calls that were admitted by this limit and lie in its window: rule 1.
    fn own(&self, id: Id, now: u64) -> u64 {
        let counts = |charge: &&Charge| charge.by == Some(id) && charge.at + id.per > now;
        self.charges().filter(counts).map(|charge| charge.net).sum()
    }

    /// Units of all calls in this window.
    fn in_window(&self, id: Id, now: u64) -> u64 {
        let counts = |charge: &&Charge| charge.at + id.per > now;
        self.charges().filter(counts).map(|charge| charge.net).sum()
    }

    /// Units of the calls that were admitted by any limit and lie in this window, as far as they must be known: rule 2.
    fn shared(&self, id: Id, now: u64) -> u64 {
        let mut known: Vec<&Charge> = Vec::new();
        // Longest limit that charged the key. Calls that have left it may be forgotten.
        let mut longest = 0;
        let forget = |known: &mut Vec<&Charge>, longest: &mut u64, per: u64, now: u64| {
            if known.iter().all(|charge| charge.at + *longest <= now) {
                *longest = 0;
                known.clear();
            }
            if per > *longest {
                known.retain(|charge| charge.at + *longest > now);
                *longest = per;
            }
        };
        for charge in self.charges().filter(|charge| charge.net > 0 && charge.is_certain) {
            let per = charge.by.map_or(0, |id| id.per);
            forget(&mut known, &mut longest, per, charge.at);
            known.push(charge);
        }
        forget(&mut known, &mut longest, id.per, now);
        let counts = |charge: &&&Charge| charge.at + id.per > now;
        known.iter().filter(counts).map(|charge| charge.net).sum()
    }

    /// Level of a bucket that only the calls of this limit fill, as if they had cost their final amount: rule 1.
    fn own_level(&self, id: Id, now: u64) -> u128 {
        let mut bucket = Leaking::new(id);
        for charge in self.charges().filter(|charge| charge.by == Some(id)) {
            bucket.leak(charge.at);
            bucket.level += bucket.parts(charge.net);
        }
        bucket.leak(now);
        bucket.level
    }

    /// Level of a bucket that also the calls of other limits fill while this one is known: rule 5. Zero if units were
    /// taken back from a call that was not the last one.
    fn shared_level(&self, id: Id, now: u64) -> u128 {
        if self.charges().any(|charge| charge.is_inexact || !charge.is_certain) {
            return 0;
        }
        let mut bucket = Leaking::new(id);
        let (mut is_known, mut used_at) = (false, 0);
        for event in &self.events {
            match event {
                Event::Used(by, at) if *by == id => {
                    bucket.leak(*at);
                    if used_at + id.per <= *at {
                        bucket.level = 0;
                    }
                    (is_known, used_at) = (true, *at);
                }
                Event::Used(..) => {}
                Event::Charged(charge) => {
                    bucket.leak(charge.at);
                    if charge.by == Some(id) {
                        bucket.level += bucket.parts(charge.net);
                    } else if bucket.level == 0 || used_at + id.per <= charge.at {
                        is_known = false;
                    } else if is_known {
                        bucket.note(charge.net);
                    }
                }
            }
        }
        bucket.leak(now);
        if used_at + id.per <= now { 0 } else { bucket.level }
    }

    /// Usage by this limit that the limiter must count, in parts.
    fn least_parts(&self, window: Window, id: Id, now: u64, is_shared: bool) -> u128 {
        match window {
            Window::Gcra if is_shared => self.own_level(id, now).max(self.shared_level(id, now)),
            Window::Gcra => self.own_level(id, now),
            _ => u128::from(self.own(id, now).max(self.shared(id, now))) * u128::from(id.per),
        }
    }

    /// Returns the rule that a further call breaks, if it exceeds the quota with the calls of this limit, or of all.
    /// `grain` is the rounding of a call.
    pub(super) fn exceeded_by(
        &self,
        window: Window,
        id: Id,
        now: u64,
        cost: u64,
        grain: u64,
    ) -> Option<&'static str> {
        let bucket = Leaking::new(id);
        let rounding = u128::from(grain * id.quota) * self.charges().count() as u128;
        let exceeds = |used: u128| used + bucket.parts(cost) > bucket.capacity() + rounding;
        let parts = |units| bucket.parts(units);
        let (own, shared) = match window {
            Window::Gcra => (self.own_level(id, now), self.shared_level(id, now)),
            _ => (parts(self.own(id, now)), parts(self.shared(id, now))),
        };
        match (exceeds(own), exceeds(shared)) {
            (true, _) => Some("1: no limit is exceeded by its own calls"),
            (_, true) => Some("2: calls admitted by other limits count"),
            _ => None,
        }
    }

    /// Largest number of units that may be left.
    pub(super) fn most_remaining(&self, window: Window, id: Id, now: u64, is_shared: bool) -> u64 {
        let left = Leaking::new(id)
            .capacity()
            .saturating_sub(self.least_parts(window, id, now, is_shared));
        (left / u128::from(id.per)) as u64
    }

    /// Returns true if the limit has certainly a state of its own: one of its calls counts, and it was used in its
    /// window.
    pub(super) fn is_known(&self, window: Window, id: Id, now: u64) -> bool {
        let is_used = self.events.iter().any(|event| match event {
            Event::Used(by, at) => *by == id && at + id.per > now,
            Event::Charged(_) => false,
        });
        match window {
            // None of the calls in the window may be forgotten.
            Window::Log => self.shared(id, now) == self.in_window(id, now),
            Window::Gcra => is_used && self.own_level(id, now) > 0,
            _ => is_used && self.own(id, now) > 0,
        }
    }

    /// Usage by this limit that the limiter may count. `is_loose`: refunds may be lost, and a state may be forgotten
    /// at any time.
    fn upper(&self, window: Window, id: Id, now: u64, is_loose: bool) -> Upper {
        match window {
            Window::Gcra => Upper::Level(self.upper_level(id, now, is_loose)),
            Window::Buckets(n) => {
                let span = (n as u64 + 1) * id.per.div_ceil(n as u64);
                let placed = self.placed(id, now, n as u64, is_loose);
                Upper::Leaving(
                    placed.iter().map(|charge| (charge.here + span, charge.units)).collect(),
                )
            }
            _ => {
                let units = |charge: &Charge| if is_loose { charge.gross } else { charge.net };
                Upper::Leaving(
                    self.charges().map(|charge| (charge.at + id.per, units(charge))).collect(),
                )
            }
        }
    }

    /// Charges with the latest times to which rings assign them. The ring of a limit without a state of its own has the
    /// buckets of another one: a call then counts from the end of its bucket, or from the last charge.
    fn placed(&self, id: Id, now: u64, n: u64, is_loose: bool) -> Vec<Placed> {
        let mut placed: Vec<Placed> = Vec::new();
        let (mut longest, mut last) = (0, 0);
        let read = Event::Used(id, now);
        for event in self.events.iter().chain([&read]) {
            match event {
                Event::Charged(charge) => {
                    let units = if is_loose { charge.gross } else { charge.net };
                    let at = charge.at;
                    let by = charge.by.map(|id| id.per);
                    placed.push(Placed { at, by, units, here: at, anywhere: at });
                    last = last.max(at);
                }
                Event::Used(by, at) => {
                    let is_in_use = placed.iter().any(|charge| {
                        charge.by == Some(by.per) && charge.units > 0 && charge.at + by.per > *at
                    });
                    longest = by.per.max(longest);
                    if is_in_use && !is_loose {
                        continue;
                    }
                    for charge in &mut placed {
                        let place = last.min(charge.anywhere + longest.div_ceil(n));
                        charge.anywhere = charge.anywhere.max(place);
                        if by.per == id.per {
                            charge.here = charge.here.max(place);
                        }
                    }
                }
            }
        }
        placed
    }

    /// Highest level: each time that the limit may have had no state of its own, all units that the key ever used are
    /// in use at that time, up to the largest quota and all debts. Calls of other limits fill the bucket up to the
    /// same.
    fn upper_level(&self, id: Id, now: u64, is_loose: bool) -> u128 {
        let (mut highest, mut own) = (Leaking::new(id), Leaking::new(id));
        let mut units = 0_u64;
        let mut used_at = None;
        let quotas = self.events.iter().map(|event| match event {
            Event::Used(by, _) => by.quota,
            Event::Charged(_) => 0,
        });
        let debts = self.charges().filter(|charge| charge.call.is_none());
        let most =
            quotas.max().unwrap_or(0).max(id.quota) + debts.map(|charge| charge.gross).sum::<u64>();
        let read = Event::Used(id, now);
        for event in self.events.iter().chain([&read]) {
            match event {
                Event::Used(by, at) if *by == id => {
                    highest.leak(*at);
                    own.leak(*at);
                    let was_used = used_at.is_some_and(|used| used + id.per > *at);
                    if !was_used || own.level == 0 || is_loose {
                        highest.level = highest.level.max(highest.parts(units.min(most)));
                    }
                    used_at = Some(*at);
                }
                Event::Used(..) => {}
                Event::Charged(charge) => {
                    let cost =
                        if charge.is_inexact || is_loose { charge.gross } else { charge.net };
                    highest.leak(charge.at);
                    own.leak(charge.at);
                    // A debt may exceed the quota.
                    if charge.by == Some(id) || charge.call.is_none() {
                        highest.level += highest.parts(cost);
                    } else {
                        let noted = highest.level + highest.parts(cost);
                        highest.level = highest.level.max(noted.min(highest.parts(most)));
                    }
                    if charge.by == Some(id) {
                        own.level += own.parts(charge.net);
                    }
                    units += cost;
                }
            }
        }
        highest.level
    }

    /// First time from now on at which the cost fits, by the highest usage that the limiter may count.
    pub(super) fn ready(&self, window: Window, id: Id, now: u64, cost: u64, is_loose: bool) -> u64 {
        match self.upper(window, id, now, is_loose) {
            Upper::Level(level) => {
                let bucket = Leaking::new(id);
                let excess = (level + bucket.parts(cost)).saturating_sub(bucket.capacity());
                // Conversions round up, on Redis to a microsecond of a fast limit, which is longer by a slow one.
                let step = |id: Id| (id.per / id.quota).max(1);
                let steps = self.charges().filter_map(|charge| charge.by).map(step);
                let grain = step(id) / steps.min().unwrap_or(u64::MAX) + 1;
                let rounding = if excess > 0 { grain * self.charges().count() as u64 } else { 0 };
                now + excess.div_ceil(u128::from(id.quota)) as u64 + rounding
            }
            Upper::Leaving(leaving) => {
                let used = |at: u64| -> u64 {
                    leaving.iter().filter(|(leaves, _)| *leaves > at).map(|(_, units)| units).sum()
                };
                let times = leaving.iter().map(|(leaves, _)| *leaves).chain([now]);
                let times = times.filter(|at| *at >= now && used(*at) + cost <= id.quota);
                times.min().expect("all charges leave the window eventually")
            }
        }
    }

    /// Smallest number of units that may be left.
    pub(super) fn least_remaining(&self, window: Window, id: Id, now: u64, is_loose: bool) -> u64 {
        match self.upper(window, id, now, is_loose) {
            Upper::Level(level) => {
                let left = Leaking::new(id).capacity().saturating_sub(level);
                (left / u128::from(id.per)) as u64
            }
            Upper::Leaving(leaving) => {
                let used: u64 = leaving
                    .iter()
                    .filter(|(leaves, _)| *leaves > now)
                    .map(|(_, units)| units)
                    .sum();
                id.quota.saturating_sub(used)
            }
        }
    }

    /// The calls, for a report.
    pub(super) fn history(&self, from: u64) -> String {
        let charges = self.charges().map(|charge| {
            let Charge { at, gross, net, by, .. } = charge;
            let by =
                by.map_or("?".to_owned(), |id| format!("{}/{}s", id.quota, id.per / 1_000_000));
            let taken_back = if gross == net { String::new() } else { format!(", finally {net}") };
            format!("{:.6}s: {gross} by {by}{taken_back}", (at - from) as f64 / 1e6)
        });
        charges.collect::<Vec<_>>().join("; ")
    }
}
