//! Whether what was read is still all that this process knows of a key: one number for each place that keys share, and
//! one for all of them.
//!
//! 1. A mark is taken before the server is asked. It stands as long as nobody has moved it: then nothing about its key
//!    came here since, by whichever way, that the answer could be older than.
//! 2. Numbers only grow. So a mark that has fallen never stands again, however late its answer comes.
//! 3. Keys that share a place move each other's marks, which costs a question and is never wrong.

use std::{
    hash::BuildHasher,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::engine::hasher::DefaultHasher;

/// How many places there are, at least and at most: 8 bytes each.
const PLACES: (usize, usize) = (1 << 10, 1 << 20);

pub(super) struct Marks {
    hasher: DefaultHasher,
    all: Own,
    places: Box<[AtomicU64]>,
}

/// What is read at each look-up, on a cache line without what others write.
#[repr(align(128))]
struct Own(AtomicU64);

/// Where the number of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

/// The number of a place and that of all, added up: as neither shrinks, the sum is the same where both are. It knows its
/// place, so that who looks whether it stands need not hash the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) struct Mark {
    place: Place,
    sum: u64,
}

impl Marks {
    /// For about so many keys.
    pub(super) fn new(keys: usize) -> Self {
        let (least, most) = PLACES;
        let places = keys.saturating_mul(2).clamp(least, most).next_power_of_two();
        Self {
            hasher: DefaultHasher::default(),
            all: Own(AtomicU64::new(0)),
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    #[inline]
    pub(super) fn place(&self, key: &[u8]) -> Place {
        // Their number is a power of two.
        Place(self.hasher.hash_one(key) as usize & (self.places.len() - 1))
    }

    #[inline]
    pub(super) fn mark(&self, place: Place) -> Mark {
        let all = self.all.0.load(Acquire);
        Mark { place, sum: all.wrapping_add(self.places[place.0].load(Acquire)) }
    }

    #[inline]
    pub(super) fn stands(&self, mark: Mark) -> bool {
        self.mark(mark.place) == mark
    }

    pub(super) fn fall(&self, place: Place) {
        self.places[place.0].fetch_add(1, Release);
    }

    pub(super) fn fall_all(&self) {
        self.all.0.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests;
