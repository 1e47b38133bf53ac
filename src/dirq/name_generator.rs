//! The names of new elements: the wall clock, so that elements of several processes come about in their order, and
//! always later than the last, so that those of one queue do exactly.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

/// Makes the names of new elements, for a queue and its clones.
#[derive(Debug)]
pub(super) struct NameGenerator {
    /// The last digit of each: two processes that add in the same microsecond most probably differ in it.
    rnd_hex: u8,
    /// Microseconds since 1970.
    last: AtomicU64,
}

impl NameGenerator {
    pub(super) fn new(rnd_hex: u8) -> Self {
        Self { rnd_hex, last: AtomicU64::new(0) }
    }

    /// An element's name. Where the clock stands still or goes back, it is a microsecond after the last.
    pub(super) fn next(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2);
        // Relaxed: nobody reads anything else by it.
        let later = |last: u64| Some(now.max(last + 1));
        let last = self
            .last
            .fetch_update(Relaxed, Relaxed, later)
            .expect("there is always a later microsecond");
        let micros = now.max(last + 1);
        // Of the seconds, what goes into 8 digits: they begin anew in 2106, as those of the originals.
        let seconds = u64::from((micros / 1_000_000) as u32);
        seconds << 24 | (micros % 1_000_000) << 4 | u64::from(self.rnd_hex)
    }
}

/// The seconds since 1970 in an element's name.
pub(super) fn seconds(element: u64) -> u32 {
    (element >> 24) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No test from outside can turn the clock.
    #[test]
    fn names_go_on_where_the_clock_goes_back() {
        let names = NameGenerator::new(10);
        let now = names.next();
        let ahead = names.last.fetch_add(3_600_999_999, Relaxed) + 3_600_999_999;
        for i in 1..=3 {
            let (next, micros) = (names.next(), ahead + i);
            assert!(next > now);
            assert_eq!(u64::from(seconds(next)), micros / 1_000_000);
            assert_eq!(next & 0xff_ffff, (micros % 1_000_000) << 4 | 10);
        }
    }
}
