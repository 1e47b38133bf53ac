use super::rule::{Algorithm, Charge, Left, Rule};
use crate::clock::{Now, Tick};

/// A ring of counters, one for each part of the window and one for the part that the present is in. The
/// oldest counts in full, so no window of `per` ever holds more than the quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    counts: Counts,
    /// Where the newest is.
    newest: usize,
    /// When the newest began; no sense where nothing is in use.
    start: Option<Tick>,
    /// How long each is.
    step: u64,
    /// The sum of all.
    used: u32,
}

/// The counters; small ones need no memory of their own.
#[derive(Clone, Debug)]
enum Counts {
    Few { len: u16, counts: [u16; FEW] },
    Many(Box<[u32]>),
}

const FEW: usize = 15;

impl Buckets {
    /// Goes on to the bucket that `now` is in.
    fn roll(&mut self, now: Tick, start: Tick) {
        let passed = now.nanoseconds_since(start) / self.step;
        self.start = Some(start.later(passed * self.step));
        for _ in 0..passed.min(self.counts.len() as u64) {
            self.newest = if self.newest + 1 < self.counts.len() { self.newest + 1 } else { 0 };
            let gone = self.counts.get(self.newest);
            self.counts.take(self.newest, gone);
            self.used -= gone;
        }
    }

    /// Another plan has other buckets: what is in use counts as if it were all charged just now.
    #[cold]
    fn refit(&mut self, rule: &Rule, now: Tick) {
        // A plan of a smaller quota may find more in use than it has.
        self.counts = Counts::new(rule.buckets + 1, rule.quota.max(self.used));
        self.counts.add(0, self.used);
        self.newest = 0;
        self.start = Some(now);
        self.step = rule.step;
    }

    #[inline]
    fn fits(&self, rule: &Rule) -> bool {
        self.step == rule.step
            && self.counts.len() == rule.buckets + 1
            && self.counts.holds(rule.quota)
    }

    #[inline]
    fn holds(&self, rule: &Rule, cost: u32) -> bool {
        u64::from(self.used) + u64::from(cost) <= u64::from(rule.quota)
    }

    /// When the bucket that is so much older than the newest leaves.
    fn leaves(&self, start: Tick, age: usize) -> Tick {
        start.later((self.counts.len() - age) as u64 * self.step)
    }

    fn at_age(&self, age: usize) -> usize {
        if age <= self.newest { self.newest - age } else { self.newest + self.counts.len() - age }
    }

    /// The age and the count of each bucket, the oldest first.
    fn oldest_first(&self) -> impl Iterator<Item = (usize, u32)> {
        (0..self.counts.len()).rev().map(|age| (age, self.counts.get(self.at_age(age))))
    }
}

impl Algorithm for Buckets {
    #[inline]
    fn room(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> Result<(), Tick> {
        if !self.fits(rule) {
            self.refit(rule, now.tick());
        }
        let Some(mut start) = self.start else { return Ok(()) };
        if now.has_reached(start.later(self.step)) {
            self.roll(now.tick(), start);
            start = self.start.unwrap_or(start);
        }
        if self.holds(rule, cost) {
            return Ok(());
        }
        let mut excess = u64::from(self.used) + u64::from(cost) - u64::from(rule.quota);
        let last = self.oldest_first().find(|(_, count)| {
            let is_enough = u64::from(*count) >= excess;
            excess = excess.saturating_sub(u64::from(*count));
            is_enough
        });
        let (age, _) = last.expect("what is in use was charged");
        Err(self.leaves(start, age))
    }

    #[inline]
    fn charge(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> (Charge, u32) {
        let start = match self.start {
            Some(start) if self.used > 0 => start,
            // The first call ends its bucket: a burst is free again after `per`, not a bucket later.
            _ => now.tick().earlier(self.step - 1),
        };
        self.start = Some(start);
        self.counts.add(self.newest, cost);
        self.used += cost;
        (Charge { mark: start, amount: u64::from(cost) }, rule.quota - self.used)
    }

    fn refund(&mut self, charge: Charge, _: &impl Now) {
        let Some(start) = self.start.filter(|start| *start >= charge.mark) else { return };
        let since = start.nanoseconds_since(charge.mark);
        let age = since / self.step;
        if !since.is_multiple_of(self.step) || age >= self.counts.len() as u64 {
            return;
        }
        let bucket = self.at_age(age as usize);
        let back = self.counts.get(bucket).min(charge.amount as u32);
        self.counts.take(bucket, back);
        self.used -= back;
    }

    fn left(&self, rule: &Rule, now: &impl Now) -> Left {
        let Some(start) = self.start.filter(|_| self.used > 0) else {
            return Left { remaining: rule.quota, more_at: None };
        };
        let (mut used, mut more_at) = (self.used, None);
        for (age, count) in self.oldest_first().filter(|(_, count)| *count > 0) {
            let leaves = self.leaves(start, age);
            if !now.has_reached(leaves) {
                more_at = Some(leaves);
                break;
            }
            used -= count;
        }
        Left { remaining: rule.quota.saturating_sub(used), more_at }
    }

    #[inline]
    fn idle_from(&self, _: &Rule) -> Option<Tick> {
        // That of the newest bucket, whether or not something is in it: a little late, and cheap.
        self.start.map(|start| self.leaves(start, 0))
    }
}

impl Counts {
    fn new(len: usize, most: u32) -> Self {
        match (u16::try_from(len), u16::try_from(most)) {
            (Ok(small), Ok(_)) if len <= FEW => Counts::Few { len: small, counts: [0; FEW] },
            _ => Counts::Many(vec![0; len].into()),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Counts::Few { len, .. } => usize::from(*len),
            Counts::Many(counts) => counts.len(),
        }
    }

    /// Whether each counter can count so far.
    #[inline]
    fn holds(&self, most: u32) -> bool {
        matches!(self, Counts::Many(_)) || most <= u32::from(u16::MAX)
    }

    #[inline]
    fn get(&self, index: usize) -> u32 {
        match self {
            Counts::Few { counts, .. } => u32::from(counts[index]),
            Counts::Many(counts) => counts[index],
        }
    }

    #[inline]
    fn add(&mut self, index: usize, units: u32) {
        match self {
            Counts::Few { counts, .. } => counts[index] += units as u16,
            Counts::Many(counts) => counts[index] += units,
        }
    }

    #[inline]
    fn take(&mut self, index: usize, units: u32) {
        match self {
            Counts::Few { counts, .. } => counts[index] -= units as u16,
            Counts::Many(counts) => counts[index] -= units,
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts::Few { len: 0, counts: [0; FEW] }
    }
}
