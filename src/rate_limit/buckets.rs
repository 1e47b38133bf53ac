//! [`Window::Buckets`](super::Window::Buckets): counters for parts of the window. Never admits more than the quota;
//! quota is free again up to one part late.

use super::algorithm::{Algorithm, Charge, LimitParams, Releases};
use crate::engine::clock::{Now, Tick};

/// Ring of counters: one for each part of the window, and one for the part that contains the present. The oldest counts
/// in full, so no window of `per` contains more than the quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    counts: Counts,
    /// Number of buckets.
    len: u16,
    /// Index of the newest bucket.
    newest: u16,
    /// Sum of all buckets, saturating: a debt may exceed every quota.
    used: u32,
    /// Start of the newest bucket; meaningless if nothing is in use.
    start: Option<Tick>,
    /// Length of a bucket.
    step: u64,
}

/// Counters of the buckets; a few small ones are stored inline.
#[derive(Clone, Debug)]
enum Counts {
    Few([u16; INLINE]),
    Many(Box<[u32]>),
}

/// Number of inline counters: with the enum's tag, they fill three words. `Buckets(10)` needs as many.
const INLINE: usize = 11;

impl Buckets {
    /// Advances to the bucket that contains `now`, and clears the buckets that have left the window.
    fn advance(&mut self, params: &LimitParams, now: &impl Now, start: Tick) {
        // The coarse clock is late: this many buckets have passed, or more.
        let mut passed = now.at_least().nanoseconds_since(start) / self.step;
        if now.has_reached(start.later((passed + 1) * self.step)) {
            passed = now.tick().nanoseconds_since(start) / self.step;
        }
        let start = start.later(passed * self.step);
        // After `len` buckets the ring is empty, however long the key was idle.
        for _ in 0..passed.min(u64::from(self.len)) {
            self.newest = if self.newest + 1 < self.len { self.newest + 1 } else { 0 };
            self.clear(self.newest);
        }
        self.start = Some(start);
        // At the last tick of the newest bucket, even the last charge of the oldest is `per` old, so it leaves too.
        if now.has_reached(self.leaves_at(params, start, self.len - 1)) {
            self.clear(self.at_age(self.len - 1));
        }
    }

    fn clear(&mut self, bucket: u16) {
        self.take(bucket, self.counts.get(bucket));
    }

    fn take(&mut self, bucket: u16, units: u32) {
        self.counts.take(bucket, units);
        // A saturated sum has lost units, so it is counted again and not reduced.
        match self.used {
            u32::MAX => self.used = u32::try_from(self.sum()).unwrap_or(u32::MAX),
            _ => self.used -= units,
        }
    }

    /// Returns the sum of all buckets, counted again if `used` is saturated.
    #[inline]
    fn total(&self) -> u64 {
        if self.used < u32::MAX { self.used.into() } else { self.sum() }
    }

    #[cold]
    fn sum(&self) -> u64 {
        (0..self.len).map(|bucket| u64::from(self.counts.get(bucket))).sum()
    }

    /// Changes to the buckets of other parameters: the present usage counts as if it were charged now.
    #[cold]
    fn refit(&mut self, params: &LimitParams, now: &impl Now) {
        self.used = self.used(params, now);
        self.len = params.buckets + 1;
        // The usage may be above a smaller quota.
        self.counts = Counts::new(self.len, params.quota.max(self.used));
        self.counts.add(0, self.used);
        self.newest = 0;
        self.step = params.step;
        self.start = Some(self.bucket_ending_at(now.tick()));
    }

    #[inline]
    fn fits(&self, params: &LimitParams) -> bool {
        self.step == params.step
            && self.len == params.buckets + 1
            && self.counts.holds(params.quota)
    }

    /// Returns the start of a bucket whose last tick is `now`. A charge at `now` is then free again after `per`, not
    /// one bucket later.
    fn bucket_ending_at(&self, now: Tick) -> Tick {
        now.earlier(self.step - 1)
    }

    /// Returns when the bucket that is `age` older than the newest leaves: `per` after its last tick.
    #[inline]
    fn leaves_at(&self, params: &LimitParams, start: Tick, age: u16) -> Tick {
        let last = start.later(self.step - 1).earlier(u64::from(age) * self.step);
        last.later(u64::from(params.buckets) * params.step)
    }

    #[inline]
    fn at_age(&self, age: u16) -> u16 {
        if age <= self.newest { self.newest - age } else { self.newest + (self.len - age) }
    }

    /// Returns when the bucket leaves that makes the cost exceed the quota, counted from the newest.
    #[inline(never)]
    fn ready_late(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // Cannot underflow: a cost above the quota never gets here.
        let headroom = u64::from(params.quota - cost);
        let mut sum = 0;
        let age = (0..self.len).find(|age| {
            sum += u64::from(self.counts.get(self.at_age(*age)));
            sum > headroom
        })?;
        let leaves = self.leaves_at(params, self.start?, age);
        (!now.has_reached(leaves)).then_some(leaves)
    }

    #[inline]
    fn releases(&self, params: &LimitParams) -> impl Iterator<Item = (Tick, u32)> {
        // Without a start all buckets are empty, so it makes no difference.
        let start = self.start.unwrap_or(Tick::from_nanoseconds(0));
        (0..self.len).rev().filter_map(move |age| {
            let units = self.counts.get(self.at_age(age));
            (units > 0).then(|| (self.leaves_at(params, start, age), units))
        })
    }
}

impl Algorithm for Buckets {
    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // If it fits with all charges counted, the time makes no difference, and the clock is not read.
        let holds = u64::from(self.used) + u64::from(cost) <= u64::from(params.quota);
        if holds { None } else { self.ready_late(params, now, cost) }
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        if !self.fits(params) {
            self.refit(params, now);
        }
        let mut start = self.start.unwrap_or_else(|| now.tick());
        // From the last tick of the newest bucket on, at which the oldest bucket leaves.
        if now.has_reached(start.later(self.step - 1)) {
            self.advance(params, now, start);
        }
        // An empty ring may start anywhere. A bucket that ends now frees this charge after exactly `per`.
        if self.used == 0 {
            self.start = Some(self.bucket_ending_at(now.tick()));
        }
        start = self.start.unwrap_or(start);
        let used = self.used.saturating_add(cost);
        // `fits` checked the quota; a debt may exceed it.
        if !self.counts.holds(used) {
            self.counts.widen(self.len);
        }
        self.counts.add(self.newest, cost);
        self.used = used;
        (Charge { mark: start, amount: u64::from(cost) }, params.quota.saturating_sub(self.used))
    }

    fn refund(&mut self, charge: Charge, _: &LimitParams, _: &impl Now) {
        // A ring that starts earlier than the charge was restarted when it was empty.
        let Some(start) = self.start.filter(|start| *start >= charge.mark) else { return };
        let since = start.nanoseconds_since(charge.mark);
        let age = since / self.step;
        // Otherwise the ring was refitted or restarted since, or the charge has left the window.
        if !since.is_multiple_of(self.step) || age >= u64::from(self.len) {
            return;
        }
        let bucket = self.at_age(age as u16);
        // The bucket may contain less: that of another ring may start at the same tick.
        self.take(bucket, self.counts.get(bucket).min(charge.amount as u32));
    }

    fn used(&self, params: &LimitParams, now: &impl Now) -> u32 {
        self.releases(params).used(self.total(), now)
    }

    fn is_empty(&self, _: &impl Now) -> bool {
        self.used == 0
    }

    #[inline]
    fn idle_from(&self, params: &LimitParams) -> Option<Tick> {
        // The time of the newest bucket, even if it is empty: a little late, but without a search.
        self.start.map(|start| self.leaves_at(params, start, 0))
    }
}

impl Counts {
    fn new(len: u16, max_count: u32) -> Self {
        match usize::from(len) {
            len if len <= INLINE && max_count <= u32::from(u16::MAX) => Counts::Few([0; INLINE]),
            len => Counts::Many(vec![0; len].into()),
        }
    }

    /// Returns `true` if each counter can count up to `most`.
    #[inline]
    fn holds(&self, max_count: u32) -> bool {
        matches!(self, Counts::Many(_)) || max_count <= u32::from(u16::MAX)
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
            // Neither truncates nor overflows: the callers check the sum of all buckets by `holds`.
            Counts::Few(counts) => counts[usize::from(index)] += units as u16,
            Counts::Many(counts) => {
                let count = &mut counts[usize::from(index)];
                // Saturates: a count above every quota leaves as a whole, so its exact size makes no difference.
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
        Counts::Few([0; INLINE])
    }
}
