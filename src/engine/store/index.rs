//! Which windows of a shard a sweep must look at.
//!
//! For each window the index has a moment before which nothing in it dies, in 16 bits, and for each group of windows
//! the soonest of theirs. So a sweep touches only what holds something dead, and a million live entries cost it next
//! to nothing. What the index says may be too early, never too late:
//!
//! 1. A write notes its deadline; a deadline that moves away or leaves is not unnoted.
//! 2. Who has looked at a window tells what is left in it.
//! 3. Where entries move, nothing dies before what was the soonest of all.
//! 4. A moment counts from a base in milliseconds, rounded down to twelve bits: the farther it is, the coarser. So what
//!    is far is looked at too early, once or twice. The base follows the present, which is never coarse by more than
//!    some milliseconds.

use super::window::{Table, WINDOW};
use crate::engine::clock::{Deadline, Tick};

/// How many windows a group has.
const GROUP: usize = 64;

/// A moment is so many bits coarser than a tick, and so a millisecond.
const MILLISECOND_BITS: u32 = 20;

/// So many bits of the milliseconds from the base are kept.
const MOMENT_BITS: u32 = 12;

/// Nothing in it ever dies, as far as is known.
const NEVER: u16 = u16::MAX;

/// The latest of all moments, a century from the base.
const LATEST: u16 = NEVER - 1;

/// How far the present may be from the base.
const MAX_BASE_AGE: u64 = 1 << 14;

pub(super) struct Index {
    base: u64,
    /// None before the first entry comes.
    windows: Vec<u16>,
    groups: Vec<u16>,
    /// Not later than any of the groups.
    earliest: u16,
}

impl Index {
    /// For a table that is empty.
    pub(super) fn new<K, V>(table: &Table<K, V>) -> Self {
        let base = Tick::EPOCH.nanoseconds() >> MILLISECOND_BITS;
        let mut index = Self { base, windows: Vec::new(), groups: Vec::new(), earliest: NEVER };
        if table.capacity() > 0 {
            index.entries_moved(table);
        }
        index
    }

    /// An entry at this bucket dies at `deadline`. Tells the soonest of all where it is sooner than it was.
    #[inline]
    pub(super) fn note_deadline(&mut self, bucket: usize, deadline: Deadline) -> Option<Deadline> {
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

    /// Entries have moved, or have another table now.
    pub(super) fn entries_moved<K, V>(&mut self, table: &Table<K, V>) {
        let windows = table.buckets().div_ceil(WINDOW);
        // Exactly as long as it must be: it counts in bytes an entry.
        self.windows = vec![self.earliest; windows];
        self.groups = vec![self.earliest; windows.div_ceil(GROUP)];
    }

    /// Nothing is left. If the table is another, it is told by [`entries_moved`](Index::entries_moved).
    pub(super) fn clear(&mut self) {
        self.earliest = NEVER;
        self.windows.fill(NEVER);
        self.groups.fill(NEVER);
    }

    /// There is more than the index knows of.
    pub(super) fn mark_all_due(&mut self) {
        self.earliest = 0;
    }

    /// The first bucket of the first window between `start` and `end` in which something may be dead. Both are where
    /// windows begin or the table ends.
    pub(super) fn next_due(&self, start: usize, end: usize, now: Tick) -> Option<usize> {
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

    /// [`Deadline::order`] of the first moment for which [`next_due`](Self::next_due) knows of more than it does now.
    pub(super) fn next_moment(&self, now: Tick) -> u64 {
        ((now.nanoseconds() >> MILLISECOND_BITS) + 1) << MILLISECOND_BITS
    }

    /// What is left in the window from bucket `start` dies at `soonest` or later.
    pub(super) fn set_window(&mut self, start: usize, earliest: Deadline) {
        let window = start / WINDOW;
        self.windows[window] = self.moment(earliest);
        let group = window / GROUP;
        let group_windows =
            &self.windows[group * GROUP..self.windows.len().min((group + 1) * GROUP)];
        self.groups[group] = group_windows.iter().copied().min().unwrap_or(NEVER);
    }

    /// Something dead is left in the window from bucket `start`.
    pub(super) fn mark_due(&mut self, start: usize) {
        self.windows[start / WINDOW] = 0;
        self.groups[start / WINDOW / GROUP] = 0;
        self.earliest = 0;
    }

    /// Works out anew before when nothing dies.
    pub(super) fn recompute_earliest(&mut self) -> Deadline {
        self.earliest = self.groups.iter().copied().min().unwrap_or(NEVER);
        self.earliest_expiry()
    }

    fn earliest_expiry(&self) -> Deadline {
        match self.earliest {
            NEVER => Deadline::PERSISTENT,
            moment => {
                Tick::from_nanoseconds((self.base + decode(moment)) << MILLISECOND_BITS).into()
            }
        }
    }

    #[inline]
    fn moment(&self, deadline: Deadline) -> u16 {
        if deadline.is_persistent() {
            return NEVER;
        }
        encode((deadline.order() >> MILLISECOND_BITS).saturating_sub(self.base))
    }

    /// Moments are counted from about `now` on.
    pub(super) fn rebase(&mut self, now: Tick) {
        let ahead = (now.nanoseconds() >> MILLISECOND_BITS).saturating_sub(self.base);
        if ahead < MAX_BASE_AGE {
            return;
        }
        self.base += ahead;
        let shift = |moment: &mut u16| {
            if *moment != NEVER {
                *moment = encode(decode(*moment).saturating_sub(ahead));
            }
        };
        self.windows.iter_mut().chain(&mut self.groups).for_each(shift);
        shift(&mut self.earliest);
    }
}

/// Milliseconds as a moment: a number of which [`KEPT`] bits are kept, in the order of the numbers.
#[inline]
fn encode(number: u64) -> u16 {
    let dropped = (u64::BITS - number.leading_zeros()).saturating_sub(MOMENT_BITS);
    let code = (u64::from(dropped) << (MOMENT_BITS - 1)) + (number >> dropped);
    code.min(u64::from(LATEST)) as u16
}

/// The least number of this code.
#[inline]
fn decode(moment: u16) -> u64 {
    let dropped = (u32::from(moment) >> (MOMENT_BITS - 1)).saturating_sub(1);
    (u64::from(moment) - (u64::from(dropped) << (MOMENT_BITS - 1))) << dropped
}

#[cfg(test)]
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

    /// Beside a list of the deadlines in each window: at any time, each window in which something is dead is due.
    #[test]
    fn no_window_with_a_dead_entry_is_passed_over() {
        let mut random = SmallRng::seed_from_u64(0x5eed_0016);
        for round in 0..200 {
            let mut table = table(random.random_range(1..20_000));
            let mut index = Index::new(&table);
            let mut windows = vec![Vec::new(); table.buckets().div_ceil(WINDOW)];
            // Within a step in some rounds, years in others.
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
                        .map_or((), |_| panic!("it is later")),
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
            // Where entries moved, or a deadline is far, it may be too early.
            assert!(
                vain_examinations < 4_000,
                "round {round}: {vain_examinations} looks for nothing"
            );
        }
    }

    #[test]
    fn moments_keep_the_order_and_are_never_late() {
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

    #[test]
    fn what_something_dead_is_left_in_stays_due() {
        let table = table(1_000);
        let mut index = Index::new(&table);
        index.note_deadline(700, at(DAY).into());
        assert_eq!(index.next_due(0, table.buckets(), at(0)), None);
        index.mark_due(700 / WINDOW * WINDOW);
        assert_eq!(index.next_due(0, table.buckets(), at(0)), Some(700 / WINDOW * WINDOW));
        assert!(!index.recompute_earliest().is_later_than(at(0).into()));
    }
}
