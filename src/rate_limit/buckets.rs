//! [`Window::Buckets`](super::Window::Buckets): counters of parts of the window. Never above the quota, and what was
//! charged is free again up to a part of the window late.

use super::algorithm::{Algorithm, Charge, LimitParams, Releases};
use crate::engine::clock::{Now, Tick};

/// A ring of counters, one for each part of the window and one for the part that the present is in. The
/// oldest counts in full, so no window of `per` ever holds more than the quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    counts: Counts,
    /// How many there are.
    len: u16,
    /// Where the newest is.
    newest: u16,
    /// The sum of all, as far as it goes: a debt may be above every quota.
    used: u32,
    /// When the newest began; no sense where nothing is in use.
    start: Option<Tick>,
    /// How long each is.
    step: u64,
}

/// The counters; small ones need no memory of their own.
#[derive(Clone, Debug)]
enum Counts {
    Few([u16; FEW]),
    Many(Box<[u32]>),
}

/// As many as fit into three words beside what tells which they are.
const FEW: usize = 11;

impl Buckets {
    /// Goes on to the bucket that `now` is in, and lets go of what has left.
    fn roll(&mut self, params: &LimitParams, now: &impl Now, start: Tick) {
        // By the coarse clock it is these, or more.
        let mut passed = now.at_least().nanoseconds_since(start) / self.step;
        if now.has_reached(start.later((passed + 1) * self.step)) {
            passed = now.tick().nanoseconds_since(start) / self.step;
        }
        let start = start.later(passed * self.step);
        for _ in 0..passed.min(u64::from(self.len)) {
            self.newest = if self.newest + 1 < self.len { self.newest + 1 } else { 0 };
            self.empty(self.newest);
        }
        self.start = Some(start);
        // In the last tick of the newest, what came in that of the oldest is as old as the window.
        if now.has_reached(self.leaves(params, start, self.len - 1)) {
            self.empty(self.at_age(self.len - 1));
        }
    }

    fn empty(&mut self, bucket: u16) {
        self.take(bucket, self.counts.get(bucket));
    }

    fn take(&mut self, bucket: u16, units: u32) {
        self.counts.take(bucket, units);
        match self.used {
            u32::MAX => self.used = u32::try_from(self.sum()).unwrap_or(u32::MAX),
            _ => self.used -= units,
        }
    }

    /// The sum of all, also where `used` can't tell.
    #[inline]
    fn total(&self) -> u64 {
        if self.used < u32::MAX { self.used.into() } else { self.sum() }
    }

    #[cold]
    fn sum(&self) -> u64 {
        (0..self.len).map(|bucket| u64::from(self.counts.get(bucket))).sum()
    }

    /// Another plan has other buckets: what is still in use counts as if it were all charged just now.
    #[cold]
    fn refit(&mut self, params: &LimitParams, now: &impl Now) {
        self.used = self.used(params, now);
        self.len = params.buckets + 1;
        // A plan of a smaller quota may find more in use than it has.
        self.counts = Counts::new(self.len, params.quota.max(self.used));
        self.counts.add(0, self.used);
        self.newest = 0;
        self.step = params.step;
        self.start = Some(self.ending_with(now.tick()));
    }

    #[inline]
    fn fits(&self, params: &LimitParams) -> bool {
        self.step == params.step
            && self.len == params.buckets + 1
            && self.counts.holds(params.quota)
    }

    /// The start of a bucket whose last tick is `now`: what is charged in it is free again after `per`, not
    /// a bucket later.
    fn ending_with(&self, now: Tick) -> Tick {
        now.earlier(self.step - 1)
    }

    /// When the last that may have come in the bucket so much older than the newest leaves.
    #[inline]
    fn leaves(&self, params: &LimitParams, start: Tick, age: u16) -> Tick {
        let last = start.later(self.step - 1).earlier(u64::from(age) * self.step);
        last.later(u64::from(params.buckets) * params.step)
    }

    #[inline]
    fn at_age(&self, age: u16) -> u16 {
        if age <= self.newest { self.newest - age } else { self.newest + (self.len - age) }
    }

    /// When that leaves which has no room beside the cost and all that is newer.
    #[inline(never)]
    fn wait(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        let idle_evictor = u64::from(params.quota - cost);
        let mut kept = 0;
        let age = (0..self.len).find(|age| {
            kept += u64::from(self.counts.get(self.at_age(*age)));
            kept > idle_evictor
        })?;
        let leaves = self.leaves(params, self.start?, age);
        (!now.has_reached(leaves)).then_some(leaves)
    }

    #[inline]
    fn releases(&self, params: &LimitParams) -> impl Iterator<Item = (Tick, u32)> {
        let start = self.start.unwrap_or(Tick::from_nanoseconds(0));
        (0..self.len).rev().filter_map(move |age| {
            let units = self.counts.get(self.at_age(age));
            (units > 0).then(|| (self.leaves(params, start, age), units))
        })
    }
}

impl Algorithm for Buckets {
    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // Where there is room anyway, the time makes no difference.
        let holds = u64::from(self.used) + u64::from(cost) <= u64::from(params.quota);
        if holds { None } else { self.wait(params, now, cost) }
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        if !self.fits(params) {
            self.refit(params, now);
        }
        let mut start = self.start.unwrap_or_else(|| now.tick());
        if now.has_reached(start.later(self.step - 1)) {
            self.roll(params, now, start);
        }
        if self.used == 0 {
            self.start = Some(self.ending_with(now.tick()));
        }
        start = self.start.unwrap_or(start);
        let used = self.used.saturating_add(cost);
        if !self.counts.holds(used) {
            self.counts.widen(self.len);
        }
        self.counts.add(self.newest, cost);
        self.used = used;
        (Charge { mark: start, amount: u64::from(cost) }, params.quota.saturating_sub(self.used))
    }

    fn refund(&mut self, charge: Charge, _: &impl Now) {
        let Some(start) = self.start.filter(|start| *start >= charge.mark) else { return };
        let since = start.nanoseconds_since(charge.mark);
        let age = since / self.step;
        if !since.is_multiple_of(self.step) || age >= u64::from(self.len) {
            return;
        }
        let bucket = self.at_age(age as u16);
        self.take(bucket, self.counts.get(bucket).min(charge.amount as u32));
    }

    fn used(&self, params: &LimitParams, now: &impl Now) -> u32 {
        self.releases(params).used(self.total(), now)
    }

    #[inline]
    fn idle_from(&self, params: &LimitParams) -> Option<Tick> {
        // That of the newest bucket, whether or not something is in it: a little late, and cheap.
        self.start.map(|start| self.leaves(params, start, 0))
    }
}

impl Counts {
    fn new(len: u16, most: u32) -> Self {
        match usize::from(len) {
            len if len <= FEW && most <= u32::from(u16::MAX) => Counts::Few([0; FEW]),
            len => Counts::Many(vec![0; len].into()),
        }
    }

    /// Whether each counter can count so far.
    #[inline]
    fn holds(&self, most: u32) -> bool {
        matches!(self, Counts::Many(_)) || most <= u32::from(u16::MAX)
    }

    #[cold]
    fn widen(&mut self, len: u16) {
        *self = Counts::Many((0..len).map(|index| self.get(index)).collect());
    }

    #[inline]
    fn get(&self, index: u16) -> u32 {
        match self {
            Counts::Few(counts) => u32::from(counts[usize::from(index)]),
            Counts::Many(counts) => counts[usize::from(index)],
        }
    }

    #[inline]
    fn add(&mut self, index: u16, units: u32) {
        match self {
            Counts::Few(counts) => counts[usize::from(index)] += units as u16,
            Counts::Many(counts) => {
                let count = &mut counts[usize::from(index)];
                // What is above every quota leaves as a whole, so how far it is above makes no difference.
                *count = count.saturating_add(units);
            }
        }
    }

    #[inline]
    fn take(&mut self, index: u16, units: u32) {
        match self {
            Counts::Few(counts) => counts[usize::from(index)] -= units as u16,
            Counts::Many(counts) => counts[usize::from(index)] -= units,
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts::Few([0; FEW])
    }
}
