//! Names of new elements. They are based on the wall clock, so that elements of several processes are roughly ordered,
//! and strictly increasing, so that elements of one queue are exactly ordered.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

/// Generates the names of new elements, for a queue and its clones.
#[derive(Debug)]
pub(super) struct NameGenerator {
    /// The last digit of each name. Two processes that add in the same microsecond most likely have different digits.
    rnd_hex: u8,
    /// Microseconds since 1970.
    last: AtomicU64,
}

impl NameGenerator {
    pub(super) fn new(rnd_hex: u8) -> Self {
        Self { rnd_hex, last: AtomicU64::new(0) }
    }

    /// Returns the next name. If the clock stands still or goes back, it is one microsecond after the last.
    pub(super) fn next(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Half of the range, so that `last + 1` below cannot overflow.
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2);
        // `Relaxed`: only the number matters, it orders no other memory.
        let later = |last: u64| Some(now.max(last + 1));
        let last = self
            .last
            .fetch_update(Relaxed, Relaxed, later)
            .expect("there is always a later microsecond");
        let micros = now.max(last + 1);
        // Only 8 digits of the seconds: they overflow in 2106, like those of the other implementations.
        let seconds = u64::from((micros / 1_000_000) as u32);
        // The format of the other implementations, which order elements by their names.
        seconds << 24 | (micros % 1_000_000) << 4 | u64::from(self.rnd_hex)
    }
}

/// Returns the seconds since 1970 in an element's name.
pub(super) fn seconds(element: u64) -> u32 {
    (element >> 24) as u32
}

/// Returns the time in an element's name, in microseconds since 1970.
#[cfg(feature = "metrics")]
pub(super) fn added_at(element: u64) -> u64 {
    u64::from(seconds(element)) * 1_000_000 + (element >> 4 & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Integration tests cannot set the clock back.
    #[test]
    fn names_increase_if_the_clock_goes_back() {
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
