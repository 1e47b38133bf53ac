//! Report of one sweep.

use std::time::Duration;

#[cfg(feature = "serde")]
use crate::engine::seconds;

/// Result of one sweep. Returned by [`Cache::sweep`](crate::Cache::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SweepReport {
    /// Number of passes: 1, plus those that [`repeat_at`](crate::Sweep::repeat_at) caused, and those after waits for a
    /// lossless stream that receives the entries of a removed tag.
    pub passes: u64,
    /// Resident entries examined, in all passes. Entries in groups of buckets that were skipped, because none of their
    /// entries is due, are not counted.
    pub looked_at: u64,
    /// Entries removed as expired.
    pub expired: u64,
    /// Working time of the sweep, without yields to the runtime and waits for subscribers.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds::duration"))]
    pub elapsed: Duration,
    /// True if another pass was due, but the [`budget`](crate::Sweep::budget) was exhausted.
    pub out_of_budget: bool,
    /// True if the sweep was delayed because a lossless stream was full. Expired entries stay in memory until events of
    /// that stream are read.
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
