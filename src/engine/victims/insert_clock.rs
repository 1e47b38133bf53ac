//! Clock of one shard: counts time in inserts, and nearly stops during a long scan.
//!
//! While keys are inserted that never occur again, the entries that are read otherwise must not grow old. A scan is
//! detected by two rates: the evictions find few recent hits compared with the usual rate, and few inserted keys have a
//! ghost. A loop that is larger than the shard has as few hits, but its keys have ghosts.

use super::access_word::CLOCK_PARTS;

/// The clock is slowed once this many units have passed without the usual hits. A shorter scan does little harm, and
/// the keys of a repeated scan need their true gaps.
const MAX_QUIET: u32 = 8;

/// A slowed clock advances by one after this many units.
const SLOWDOWN: u32 = 8;

/// A unit is quiet if its rate of hits is below this share of the usual rate,
const QUIET_HITS: f32 = 0.3;

/// and if the keys with a ghost are at most this share of all inserted keys.
const QUIET_RETURNS: f32 = 0.05;

/// Visits per insert from which on the rate of hits is known. While the shard grows, no entries are visited.
const MIN_VISITS: u32 = 2;

#[derive(Default)]
pub(crate) struct InsertClock {
    /// The present time, in units of a fraction of the shard's size.
    now: u8,
    /// Counts of this unit: inserted keys; those that had a ghost; entries that an eviction compared; those of them,
    /// and of the inserted keys, that were accessed again in this unit.
    inserts: u32,
    returns: u32,
    visits: u32,
    hits: u32,
    /// Usual hits per visit. Rises within a few units and falls slowly, so that it outlasts a scan.
    usual_hits: f32,
    /// Number of quiet units in a row.
    quiet: u32,
    /// Number of units since the slowed clock advanced.
    skipped: u32,
}

impl InsertClock {
    #[inline]
    pub(crate) fn now(&self) -> u8 {
        self.now
    }

    /// Records the insert of a key, as one of `len` entries.
    #[inline]
    pub(crate) fn inserted(&mut self, len: usize) {
        self.inserts += 1;
        if self.inserts as usize * CLOCK_PARTS >= len {
            self.end_unit();
        }
    }

    /// Records that the inserted key had a ghost.
    pub(crate) fn returned(&mut self) {
        self.returns += 1;
    }

    /// Records that an eviction compared an entry.
    #[inline]
    pub(crate) fn visited(&mut self) {
        self.visits += 1;
    }

    /// Records a hit found by an eviction, with the time since.
    pub(crate) fn found_hit(&mut self, elapsed: u8) {
        self.hits += u32::from(elapsed == 0);
    }

    fn end_unit(&mut self) {
        if self.visits >= MIN_VISITS * self.inserts {
            let hits = self.hits as f32 / self.visits as f32;
            if self.usual_hits == 0.0 {
                self.usual_hits = hits;
            }
            let is_quiet = hits < QUIET_HITS * self.usual_hits
                && self.returns as f32 <= QUIET_RETURNS * self.inserts as f32;
            self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
            let share = if hits > self.usual_hits { 1.0 / 4.0 } else { 1.0 / 64.0 };
            self.usual_hits += (hits - self.usual_hits) * share;
        }
        (self.inserts, self.returns, self.visits, self.hits) = (0, 0, 0, 0);
        self.skipped += 1;
        if self.quiet <= MAX_QUIET || self.skipped >= SLOWDOWN {
            self.skipped = 0;
            self.now = self.now.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const LEN: usize = 160;

    /// Ends `units` units in which one visit in `visits_per_hit` finds a hit. Returns how far the clock advanced.
    fn advance(
        clock: &mut InsertClock,
        units: usize,
        visits_per_hit: Option<u32>,
        returns: bool,
    ) -> u8 {
        let before = clock.now();
        for _ in 0..units * LEN / CLOCK_PARTS {
            for index in 0..8 {
                clock.visited();
                if visits_per_hit.is_some_and(|visits| index % visits == 0) {
                    clock.found_hit(0);
                }
            }
            if returns {
                clock.returned();
            }
            clock.inserted(LEN);
        }
        clock.now().wrapping_sub(before)
    }

    #[test]
    fn clock_advances_with_a_share_of_the_inserts() {
        let mut clock = InsertClock::default();
        assert_eq!(advance(&mut clock, 100, Some(4), false), 100);
        (0..LEN).for_each(|_| clock.inserted(LEN));
        assert_eq!(clock.now(), 116, "without evictions too");
    }

    #[test]
    fn clock_is_slow_during_a_long_scan_only() {
        let mut clock = InsertClock::default();
        advance(&mut clock, 50, Some(2), false);
        let scan = advance(&mut clock, 88, None, false);
        assert_eq!(scan, 8 + 80 / 8);
        assert!(advance(&mut clock, 50, Some(2), false) >= 49);
    }

    #[test]
    fn clock_is_not_slow_in_a_loop() {
        let mut clock = InsertClock::default();
        advance(&mut clock, 50, Some(2), false);
        assert_eq!(advance(&mut clock, 50, None, true), 50);
    }

    #[test]
    fn clock_gets_used_to_fewer_hits() {
        let mut clock = InsertClock::default();
        advance(&mut clock, 50, Some(1), false);
        assert!(advance(&mut clock, 20, Some(8), false) < 20);
        advance(&mut clock, 400, Some(8), false);
        assert_eq!(advance(&mut clock, 20, Some(8), false), 20);
    }
}
