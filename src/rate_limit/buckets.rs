//! [`Window::Buckets`](super::Window::Buckets): counters for parts of the window. Never admits more than the quota;
//! quota is free again up to one part late.

use super::algorithm::{Algorithm, Back, Charge, LimitParams, Releases};
use crate::engine::clock::{Now, Tick};

/// Ring of counters: one for each part of the window, and one for the part that contains the present. The oldest counts
/// in full, so no window of `per` contains more than the quota.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    counts: BucketCounts,
    /// Index of the newest bucket.
    newest: u16,
    /// Sum of all buckets, saturating: a debt may exceed every quota.
    used: u32,
    /// Start of the newest bucket; meaningless if nothing is in use.
    start: Option<Tick>,
    /// Time of the last charge, or up to 50 ms later.
    last: Tick,
    /// Tick from which on all calls of the position are counted; `None` if none ever was.
    since: Option<Tick>,
    /// Length of a bucket.
    step: u64,
    /// The ring from which calls were taken over, while they may be in use.
    derived_from: Option<Box<DerivedFrom>>,
}

/// A ring from which another one was derived, as it was then.
#[derive(Clone, Debug)]
struct DerivedFrom {
    start: Tick,
    step: u64,
    last: Tick,
}

/// Counters of the buckets; a few small ones are stored inline.
#[derive(Clone, Debug)]
enum BucketCounts {
    Few { len: u8, counts: [u16; INLINE] },
    Many(Box<[u32]>),
}

/// Number of inline counters: with their number and the enum's tag, they fill three words. `Buckets(10)` needs as many.
const INLINE: usize = 11;

impl Buckets {
    /// Advances to the bucket that contains `now`, and clears the buckets that have left the window.
    fn advance(&mut self, now: &impl Now, start: Tick) {
        // The coarse clock is late: this many buckets have passed, or more.
        let mut passed = now.at_least().nanoseconds_since(start) / self.step;
        if now.has_reached(start.later((passed + 1) * self.step)) {
            passed = now.tick().nanoseconds_since(start) / self.step;
        }
        let start = start.later(passed * self.step);
        // After `len` buckets the ring is empty, however long the key was idle.
        for _ in 0..passed.min(u64::from(self.len())) {
            self.newest = if self.newest + 1 < self.len() { self.newest + 1 } else { 0 };
            self.clear(self.newest);
        }
        self.start = Some(start);
        // At the last tick of the newest bucket, even the last charge of the oldest is `per` old, so it leaves too.
        if now.has_reached(self.leaves_at(start, self.len() - 1)) {
            self.clear(self.at_age(self.len() - 1));
        }
    }

    fn clear(&mut self, bucket: u16) {
        self.take(bucket, self.counts.get(bucket));
    }

    /// Adds units to a bucket.
    #[inline]
    fn add(&mut self, bucket: u16, units: u32) {
        let used = self.used.saturating_add(units);
        if !self.counts.holds(used) {
            self.counts.widen();
        }
        self.counts.add(bucket, units);
        self.used = used;
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
        (0..self.len()).map(|bucket| u64::from(self.counts.get(bucket))).sum()
    }

    /// Returns the number of buckets.
    #[inline]
    fn len(&self) -> u16 {
        self.counts.len()
    }

    /// Returns the start of a bucket whose last tick is `now`. A charge at `now` is then free again after `per`, not
    /// one bucket later.
    fn bucket_ending_at(&self, now: Tick) -> Tick {
        now.earlier(self.step - 1)
    }

    /// Returns when the bucket that is `age` older than the newest leaves: `per` after its last tick.
    #[inline]
    fn leaves_at(&self, start: Tick, age: u16) -> Tick {
        self.last_tick(start, age).later(u64::from(self.len() - 1) * self.step)
    }

    /// Returns the last tick of the bucket that is `age` older than the newest.
    #[inline]
    fn last_tick(&self, start: Tick, age: u16) -> Tick {
        last_tick(start, self.step, age.into())
    }

    /// Returns the age of the bucket that contains a tick; `None` if it has left the ring.
    fn age_of(&self, tick: Tick) -> Option<u16> {
        let age = age_of(self.start?, self.step, tick);
        u16::try_from(age).ok().filter(|age| *age < self.len())
    }

    #[inline]
    fn at_age(&self, age: u16) -> u16 {
        if age <= self.newest { self.newest - age } else { self.newest + (self.len() - age) }
    }

    /// Returns when the bucket leaves that makes the cost exceed the quota, counted from the newest.
    #[inline(never)]
    fn ready_late(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // Cannot underflow: a cost above the quota never gets here.
        let headroom = u64::from(params.quota - cost);
        let mut sum = 0;
        let age = (0..self.len()).find(|age| {
            sum += u64::from(self.counts.get(self.at_age(*age)));
            sum > headroom
        })?;
        let leaves = self.leaves_at(self.start?, age);
        (!now.has_reached(leaves)).then_some(leaves)
    }

    #[inline]
    fn releases(&self) -> impl Iterator<Item = (Tick, u32)> {
        // Without a start all buckets are empty, so it makes no difference.
        let start = self.start.unwrap_or(Tick::from_nanoseconds(0));
        (0..self.len()).rev().filter_map(move |age| {
            let units = self.counts.get(self.at_age(age));
            (units > 0).then(|| (self.leaves_at(start, age), units))
        })
    }

    /// Returns a ring of another limit with the calls of this one. They count as if they were made at the last ticks of
    /// their buckets, so none leaves the window too soon; but not after the last charge.
    fn derived(&self, params: &LimitParams, now: &impl Now) -> Self {
        let mut ring = Self::new(params);
        let Some(start) = self.start else { return ring };
        // The time of the last charge may be rounded up to one in the future.
        let last = self.last.min(now.tick());
        ring.last = last;
        let newest = ring.bucket_ending_at(last);
        ring.start = Some(newest);
        let mut since = start.later(self.step);
        for age in (0..self.len()).rev() {
            if now.has_reached(self.leaves_at(start, age)) {
                continue;
            }
            since = since.min(start.earlier(u64::from(age) * self.step));
            let units = self.counts.get(self.at_age(age));
            let Some(age) = ring.age_of(self.last_tick(start, age).min(last)) else { continue };
            if units > 0 && !now.has_reached(ring.leaves_at(newest, age)) {
                ring.add(ring.at_age(age), units);
            }
        }
        ring.since = Some(since).max(self.since);
        ring.derived_from = Some(Box::new(DerivedFrom { start, step: self.step, last }));
        ring
    }
}

impl DerivedFrom {
    /// Returns the tick at which a call that was made at `mark` counts in the derived ring: the last one of its bucket,
    /// but not after the last charge.
    fn counted_at(&self, mark: Tick) -> Tick {
        let age = age_of(self.start, self.step, mark);
        last_tick(self.start, self.step, age).min(self.last).max(mark)
    }
}

impl Algorithm for Buckets {
    #[inline]
    fn new(params: &LimitParams) -> Self {
        Self {
            counts: BucketCounts::new(params.buckets + 1),
            newest: 0,
            used: 0,
            start: None,
            last: Tick::from_nanoseconds(0),
            since: None,
            step: params.step,
            derived_from: None,
        }
    }

    /// Takes the buckets of a window that contains the new one: of that with the fewest calls in the new one, since
    /// each counts all of them, at the time of the call or later. If no window does, takes those of the longest.
    fn derive<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> Self {
        let covering = known.clone().filter(|known| known.step >= params.step);
        let derived = covering.map(|known| (known.step, known.derived(params, now)));
        match derived.min_by_key(|(step, derived)| (derived.used, *step)) {
            Some((_, derived)) => derived,
            None => match known.max_by_key(|known| known.step) {
                Some(longest) => longest.derived(params, now),
                None => Self::new(params),
            },
        }
    }

    #[inline(always)]
    fn is_for(&self, params: &LimitParams) -> bool {
        self.step == params.step
    }

    fn params(&self) -> LimitParams {
        let buckets = self.len() - 1;
        let per = self.step.saturating_mul(u64::from(buckets));
        LimitParams { quota: u32::MAX, per, step: self.step, fraction: 0, buckets }
    }

    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // If it fits with all charges counted, the time makes no difference, and the clock is not read.
        let holds = u64::from(self.used) + u64::from(cost) <= u64::from(params.quota);
        if holds { None } else { self.ready_late(params, now, cost) }
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        let mut start = self.start.unwrap_or_else(|| now.tick());
        // From the last tick of the newest bucket on, at which the oldest bucket leaves.
        if now.has_reached(start.later(self.step - 1)) {
            self.advance(now, start);
        }
        // An empty ring may start anywhere. A bucket that ends now frees this charge after exactly `per`.
        if self.used == 0 {
            self.start = Some(self.bucket_ending_at(now.tick()));
            self.since = self.since.or(Some(now.tick()));
            self.derived_from = None;
        }
        start = self.start.unwrap_or(start);
        self.add(self.newest, cost);
        self.last = now.at_most();
        // A tick of the newest bucket, and not after this call: a ring that is derived later contains the call in a
        // bucket of that tick, or a later one.
        let mark = start.max(now.at_least());
        let charge = Charge { mark, amount: u64::from(cost) };
        (charge, params.quota.saturating_sub(self.used))
    }

    fn note(
        &mut self,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
        _: &Self,
    ) -> Option<(Charge, u128)> {
        let (charge, _) = self.charge(params, now, cost);
        Some((charge, 0))
    }

    fn refund(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool {
        // The call was recorded by a ring of this limit that was forgotten since; this one was derived.
        if self.derived_from.as_ref().is_some_and(|from| charge.mark <= from.last) {
            return self.refund_unrecorded(charge, back, now);
        }
        if let Some(age) = self.age_of(charge.mark) {
            let bucket = self.at_age(age);
            // The bucket may contain less: that of another ring may start at the same tick.
            self.take(bucket, self.counts.get(bucket).min(back.units));
        }
        false
    }

    fn refund_unrecorded(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool {
        let counted_at = self.derived_from.as_ref().map(|from| from.counted_at(charge.mark));
        let oldest = self.age_of(counted_at.unwrap_or(charge.mark));
        let Some((oldest, start)) = oldest.zip(self.start) else { return false };
        let is_counted = self.since.is_some_and(|since| since <= charge.mark);
        if !is_counted || now.has_reached(self.leaves_at(start, oldest)) {
            return false;
        }
        // After many changes of limits, the call may be in any later bucket. Units of older calls are taken first, so
        // no call leaves the window too soon.
        let mut left = back.units;
        for age in (0..=oldest).rev() {
            let bucket = self.at_age(age);
            let units = self.counts.get(bucket).min(left);
            self.take(bucket, units);
            left -= units;
        }
        false
    }

    fn used(&self, _: &LimitParams, now: &impl Now) -> u32 {
        self.releases().used(self.total(), now)
    }

    #[inline]
    fn idle_from(&self) -> Option<Tick> {
        // The time of the newest bucket, even if it is empty: a little late, but without a search.
        self.start.filter(|_| self.used > 0).map(|start| self.leaves_at(start, 0))
    }
}

/// Returns by how many buckets of length `step` the one that contains a tick is older than the newest, which begins at
/// `start`.
#[inline]
fn age_of(start: Tick, step: u64, tick: Tick) -> u64 {
    start.nanoseconds_since(tick).div_ceil(step)
}

/// Returns the last tick of the bucket that is `age` older than the newest.
#[inline]
fn last_tick(start: Tick, step: u64, age: u64) -> Tick {
    start.later(step - 1).earlier(age * step)
}

impl BucketCounts {
    #[inline]
    fn new(len: u16) -> Self {
        match u8::try_from(len) {
            Ok(len) if usize::from(len) <= INLINE => BucketCounts::Few { len, counts: [0; INLINE] },
            _ => BucketCounts::Many(vec![0; usize::from(len)].into()),
        }
    }

    #[inline]
    fn len(&self) -> u16 {
        match self {
            BucketCounts::Few { len, .. } => u16::from(*len),
            // Created with a length of this type.
            BucketCounts::Many(counts) => counts.len() as u16,
        }
    }

    /// Returns `true` if each counter can count up to `most`.
    #[inline]
    fn holds(&self, max_count: u32) -> bool {
        matches!(self, BucketCounts::Many(_)) || max_count <= u32::from(u16::MAX)
    }

    #[cold]
    fn widen(&mut self) {
        *self = BucketCounts::Many((0..self.len()).map(|index| self.get(index)).collect());
    }

    #[inline]
    fn get(&self, index: u16) -> u32 {
        match self {
            BucketCounts::Few { counts, .. } => u32::from(counts[usize::from(index)]),
            BucketCounts::Many(counts) => counts[usize::from(index)],
        }
    }

    #[inline]
    fn add(&mut self, index: u16, units: u32) {
        match self {
            // Neither truncates nor overflows: `Buckets::add` checks the sum of all buckets by `holds`.
            BucketCounts::Few { counts, .. } => counts[usize::from(index)] += units as u16,
            BucketCounts::Many(counts) => {
                let count = &mut counts[usize::from(index)];
                // Saturates: a count above every quota leaves as a whole, so its exact size makes no difference.
                *count = count.saturating_add(units);
            }
        }
    }

    #[inline]
    fn take(&mut self, index: u16, units: u32) {
        match self {
            BucketCounts::Few { counts, .. } => counts[usize::from(index)] -= units as u16,
            BucketCounts::Many(counts) => counts[usize::from(index)] -= units,
        }
    }
}
