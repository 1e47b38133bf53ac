//! The expiry index of a shard: which windows a sweep must examine.
//!
//! The index keeps, per window, a moment before which none of its entries expires, in 16 bits; per group of windows,
//! their earliest moment; and the earliest of all. So a sweep touches only windows with expired entries, and a million
//! live entries cost it next to nothing. A moment may be too early, never too late:
//!
//! 1. A write lowers the moment of its window. A deadline that is extended or removed does not raise it.
//! 2. After a window was examined, its moment is set to the earliest deadline in it.
//! 3. If entries change buckets, every moment becomes the earliest of all, because the index does not know which entry
//!    is where.
//! 4. A moment counts units of about a millisecond from a base, rounded down to twelve significant bits: the farther
//!    away, the coarser. So a window with a distant deadline is examined too early, once or twice. The base follows the
//!    present, so moments near the present are exact to some milliseconds.

use super::table::{Table, WINDOW};
use crate::engine::clock::{Deadline, Tick};

/// Number of windows per group.
const GROUP: usize = 64;

/// A moment counts units of 2^20 nanoseconds, which is about a millisecond.
const MILLISECOND_BITS: u32 = 20;

/// Number of significant bits of a moment.
const MOMENT_BITS: u32 = 12;

/// Moment of a window without any deadline.
const NEVER: u16 = u16::MAX;

/// The latest moment that stands for a deadline, about a century after the base. Later ones are rounded down to it.
const LATEST: u16 = NEVER - 1;

/// Age of the base, in units of a moment, from which on it is moved to the present.
const MAX_BASE_AGE: u64 = 1 << 14;

/// The earliest expiries of a shard's windows. Guarded by the lock of the shard.
pub(crate) struct Index {
    base: u64,
    /// Moment of each window; empty before the first insert.
    windows: Vec<u16>,
    groups: Vec<u16>,
    /// Earliest of all moments: not later than any of `groups`.
    earliest: u16,
}

impl Index {
    /// Returns the index of an empty table.
    pub(crate) fn new<K, V>(table: &Table<K, V>) -> Self {
        let base = Tick::EPOCH.nanoseconds() >> MILLISECOND_BITS;
        let mut index = Self { base, windows: Vec::new(), groups: Vec::new(), earliest: NEVER };
        if table.capacity() > 0 {
            index.entries_moved(table);
        }
        index
    }

    /// Records that the entry in `bucket` expires at `deadline`. Returns the earliest expiry of the shard if that
    /// lowers it.
    #[inline]
    pub(crate) fn note_deadline(&mut self, bucket: usize, deadline: Deadline) -> Option<Deadline> {
        let moment = self.moment(deadline);
        let window = bucket / WINDOW;
        if moment >= self.windows[window] {
            return None;
        }
        self.windows[window] = moment;
        let group = &mut self.groups[window / GROUP];
        *group = moment.min(*group);
        if moment >= self.earliest {
            return None;
        }
        self.earliest = moment;
        Some(self.earliest_expiry())
    }

    /// Adapts to entries that changed buckets, or to a new table.
    pub(crate) fn entries_moved<K, V>(&mut self, table: &Table<K, V>) {
        let windows = table.buckets().div_ceil(WINDOW);
        // New vectors, since growing the old ones could leave spare capacity: the index is counted in bytes per entry.
        self.windows = vec![self.earliest; windows];
        self.groups = vec![self.earliest; windows.div_ceil(GROUP)];
    }

    /// Forgets all deadlines, because the table is empty. If it is a new one, call
    /// [`entries_moved`](Index::entries_moved) next.
    pub(crate) fn clear(&mut self) {
        self.earliest = NEVER;
        self.windows.fill(NEVER);
        self.groups.fill(NEVER);
    }

    /// Marks the shard as due, because entries of the old table are not in the index. The windows of the current table
    /// keep their moments.
    pub(crate) fn mark_all_due(&mut self) {
        self.earliest = 0;
    }

    /// Returns the first bucket of the first window between `start` and `end` that may hold an expired entry. Both must
    /// be window boundaries or the end of the table.
    pub(crate) fn next_due(&self, start: usize, end: usize, now: Tick) -> Option<usize> {
        let now = self.moment(now.into());
        let (mut window, end) = (start / WINDOW, end.div_ceil(WINDOW));
        while window < end {
            if self.groups[window / GROUP] > now {
                window = window - window % GROUP + GROUP;
            } else if self.windows[window] > now {
                window += 1;
            } else {
                return Some(window * WINDOW);
            }
        }
        None
    }

    /// Returns the [`Deadline::order`] of the first time for which [`next_due`](Self::next_due) may return more than
    /// for `now`.
    pub(crate) fn next_moment(&self, now: Tick) -> u64 {
        ((now.nanoseconds() >> MILLISECOND_BITS) + 1) << MILLISECOND_BITS
    }

    /// Sets the moment of the window at bucket `start`, after it was examined, to the earliest deadline left in it.
    pub(crate) fn set_window(&mut self, start: usize, earliest: Deadline) {
        let window = start / WINDOW;
        self.windows[window] = self.moment(earliest);
        let group = window / GROUP;
        let group_windows =
            &self.windows[group * GROUP..self.windows.len().min((group + 1) * GROUP)];
        self.groups[group] = group_windows.iter().copied().min().unwrap_or(NEVER);
    }

    /// Marks the window at bucket `start` as due, because expired entries were left in it.
    pub(crate) fn mark_due(&mut self, start: usize) {
        self.windows[start / WINDOW] = 0;
        self.groups[start / WINDOW / GROUP] = 0;
        self.earliest = 0;
    }

    /// Recomputes the earliest expiry of the shard from the groups, and returns it.
    pub(crate) fn recompute_earliest(&mut self) -> Deadline {
        self.earliest = self.groups.iter().copied().min().unwrap_or(NEVER);
        self.earliest_expiry()
    }

    /// Returns the earliest expiry of the shard.
    fn earliest_expiry(&self) -> Deadline {
        match self.earliest {
            NEVER => Deadline::PERSISTENT,
            // Also stands for deadlines before the base.
            0 => Tick::from_nanoseconds(0).into(),
            moment => {
                Tick::from_nanoseconds((self.base + decode(moment)) << MILLISECOND_BITS).into()
            }
        }
    }

    /// Returns the moment of a deadline, rounded down.
    #[inline]
    fn moment(&self, deadline: Deadline) -> u16 {
        if deadline.is_persistent() {
            return NEVER;
        }
        encode((deadline.order() >> MILLISECOND_BITS).saturating_sub(self.base))
    }

    /// Moves the base to about `now`, of a sweep its stale cutoff, if it is too old or later than that. Rounds moments
    /// down again.
    ///
    /// A later base would make all moments before it look equally due. The first cutoffs are before the base, if the
    /// stale window is longer than the age of the cache.
    pub(crate) fn rebase(&mut self, now: Tick) {
        let now = now.nanoseconds() >> MILLISECOND_BITS;
        let (ahead, behind) = (now.saturating_sub(self.base), self.base.saturating_sub(now));
        if ahead < MAX_BASE_AGE && behind == 0 {
            return;
        }
        self.base = now;
        let shift = |moment: &mut u16| {
            // A moment of 0 may stand for any earlier time, and stays.
            if *moment != NEVER && *moment != 0 {
                *moment = encode((decode(*moment) + behind).saturating_sub(ahead));
            }
        };
        self.windows.iter_mut().chain(&mut self.groups).for_each(shift);
        shift(&mut self.earliest);
    }
}

/// Encodes a number of units as a moment, which keeps its [`MOMENT_BITS`] highest bits. Monotonic.
#[inline]
fn encode(number: u64) -> u16 {
    let dropped = (u64::BITS - number.leading_zeros()).saturating_sub(MOMENT_BITS);
    let code = (u64::from(dropped) << (MOMENT_BITS - 1)) + (number >> dropped);
    code.min(u64::from(LATEST)) as u16
}

/// Returns the smallest number that is encoded as `moment`.
#[inline]
fn decode(moment: u16) -> u64 {
    let dropped = (u32::from(moment) >> (MOMENT_BITS - 1)).saturating_sub(1);
    (u64::from(moment) - (u64::from(dropped) << (MOMENT_BITS - 1))) << dropped
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400_000 * MILLISECOND;

    fn table(entries: usize) -> Table<u8, u8> {
        Table::with_capacity(entries)
    }

    fn at(nanoseconds: u64) -> Tick {
        Tick::EPOCH.later(nanoseconds)
    }

    /// Compares the index with a list of the deadlines in each window: every window with an expired entry must be due.
    #[test]
    fn window_with_an_expired_entry_is_always_due() {
        let mut random = SmallRng::seed_from_u64(0x5eed_0016);
        for round in 0..200 {
            let mut table = table(random.random_range(1..20_000));
            let mut index = Index::new(&table);
            let mut windows = vec![Vec::new(); table.buckets().div_ceil(WINDOW)];
            // Within one unit in some rounds, years in others.
            let scale = [MILLISECOND, 60_000 * MILLISECOND, DAY, 400 * DAY][round % 4];
            let (mut now, mut vain_examinations) = (0, 0);
            for _ in 0..400 {
                match random.random_range(0..10) {
                    0..6 => {
                        let deadline = at(now + random.random_range(0..scale));
                        let bucket = random.random_range(0..table.buckets());
                        windows[bucket / WINDOW].push(deadline);
                        index.note_deadline(bucket, deadline.into());
                    }
                    6 => index
                        .note_deadline(0, Deadline::PERSISTENT)
                        .map_or((), |_| panic!("a persistent deadline is never the earliest")),
                    7 if random.random_range(0..10) == 0 => {
                        table = self::table(2 * table.len().max(100));
                        let all: Vec<Tick> = windows.concat();
                        windows = vec![Vec::new(); table.buckets().div_ceil(WINDOW)];
                        for deadline in all {
                            let window = random.random_range(0..windows.len());
                            windows[window].push(deadline);
                        }
                        index.entries_moved(&table);
                    }
                    _ => now += random.random_range(0..scale / 4),
                }
                let mut start = 0;
                index.rebase(at(now));
                while start < table.buckets() {
                    let due = index.next_due(start, table.buckets(), at(now));
                    let end = due.unwrap_or(table.buckets());
                    for window in &windows[start / WINDOW..end.div_ceil(WINDOW).min(windows.len())]
                    {
                        assert!(window.iter().all(|deadline| *deadline > at(now)), "round {round}");
                    }
                    let Some(due) = due else { break };
                    let window = &mut windows[due / WINDOW];
                    let before = window.len();
                    window.retain(|deadline| *deadline > at(now));
                    vain_examinations += usize::from(before == window.len());
                    let earliest =
                        window.iter().min().map_or(Deadline::PERSISTENT, |t| (*t).into());
                    index.set_window(due, earliest);
                    start = due + WINDOW;
                }
                let earliest = windows.iter().flatten().min();
                let known = index.recompute_earliest();
                assert!(earliest.is_none_or(|earliest| !known.is_later_than((*earliest).into())));
            }
            // Windows are examined too early after a rehash, or if a deadline is distant.
            assert!(
                vain_examinations < 4_000,
                "round {round}: {vain_examinations} examinations found nothing"
            );
        }
    }

    #[test]
    fn moments_keep_the_order_and_are_never_too_late() {
        let mut random = SmallRng::seed_from_u64(0x5eed_0020);
        let mut before = 0;
        for number in 0..100_000 {
            assert!(encode(number) >= before);
            before = encode(number);
        }
        for _ in 0..100_000 {
            let number = random.random::<u64>() >> random.random_range(22..64);
            let least = decode(encode(number));
            assert!(
                least <= number && number - least <= number >> (MOMENT_BITS - 1),
                "{number}: {least}"
            );
            assert_eq!(encode(least), encode(number));
        }
        assert_eq!(encode(u64::MAX), LATEST);
    }

    /// As with a stale window, in a cache that is younger than the window.
    #[test]
    fn deadline_before_the_base_is_due_at_a_cutoff_before_the_base() {
        let table = table(1_000);
        let mut index = Index::new(&table);
        let before = |milliseconds: u64| Tick::EPOCH.earlier(milliseconds * MILLISECOND);
        index.note_deadline(0, before(100).into());
        assert!(!index.recompute_earliest().is_later_than(before(100).into()));
        index.rebase(before(200));
        assert_eq!(index.next_due(0, table.buckets(), before(200)), Some(0), "not examined yet");
        index.set_window(0, before(100).into());
        assert_eq!(index.next_due(0, table.buckets(), before(200)), None);
        assert_eq!(index.next_due(0, table.buckets(), before(100)), Some(0));
        let earliest = index.recompute_earliest();
        assert!(earliest.is_later_than(before(110).into()), "{earliest:?}");
        assert!(!earliest.is_later_than(before(100).into()), "{earliest:?}");
    }

    #[test]
    fn window_with_expired_entries_left_stays_due() {
        let table = table(1_000);
        let mut index = Index::new(&table);
        index.note_deadline(700, at(DAY).into());
        assert_eq!(index.next_due(0, table.buckets(), at(0)), None);
        index.mark_due(700 / WINDOW * WINDOW);
        assert_eq!(index.next_due(0, table.buckets(), at(0)), Some(700 / WINDOW * WINDOW));
        assert!(!index.recompute_earliest().is_later_than(at(0).into()));
    }
}
