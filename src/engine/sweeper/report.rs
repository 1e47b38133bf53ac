//! What a sweep tells of itself.

use std::time::Duration;

#[cfg(feature = "serde")]
use crate::engine::seconds;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SweepReport {
    /// Passes: 1, and more where the share of the expired made it repeat.
    pub passes: u64,
    /// Resident entries looked at, in all passes. Those passed over are not counted: of a run of
    /// neighbours the cache knows how long none of them dies.
    pub looked_at: u64,
    /// Entries that expired.
    pub expired: u64,
    /// The time it worked, yields to the runtime and waits for subscribers not counted.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::duration"))]
    pub elapsed: Duration,
    /// It would have repeated once more, but its budget was spent.
    pub out_of_budget: bool,
    /// A lossless subscriber had no room: dead values stay until it reads.
    pub held_back: bool,
}

impl SweepReport {
    pub(crate) fn add(&mut self, other: &SweepReport) {
        self.passes += other.passes;
        self.looked_at += other.looked_at;
        self.expired += other.expired;
        self.elapsed += other.elapsed;
    }
}
