//! What a sweep may pass over.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::window::WINDOW;
use crate::engine::clock::{Deadline, Tick};

/// How many zones a shard has at most.
const ZONES: usize = 64;

/// Nothing is known of a zone: it must be looked at.
const UNKNOWN: u64 = 0;

/// For each zone (a run of windows) of a shard, a tick before which nothing in it dies, so that a sweep
/// passes over what it need not look at. A million live entries then cost a sweep next to nothing.
///
/// All methods are called under the shard's lock; the atomics only spare a second one. What is kept may
/// be too early, never too late:
///
/// 1. A write notes its deadline; a deadline that moves away or leaves is not unnoted.
/// 2. Where entries move, everything is forgotten.
/// 3. A look at a zone begins by forgetting, and learns window by window what is left in it. So only the
///    start of a zone may be asked.
#[derive(Default)]
pub(super) struct Zones(OnceLock<Box<[AtomicU64; ZONES]>>);

impl Zones {
    /// An entry at bucket `index` dies at `deadline`.
    #[inline]
    pub(super) fn note(&self, buckets: usize, index: usize, deadline: Deadline) {
        if let Some(zones) = self.0.get() {
            keep_sooner(&zones[index >> shift(buckets)], deadline.order());
        }
    }

    /// Entries have moved, in a table that has now so many `buckets`.
    pub(super) fn forget(&self, buckets: usize) {
        if buckets <= WINDOW && self.0.get().is_none() {
            return;
        }
        let zones = self.0.get_or_init(|| Box::new([const { AtomicU64::new(UNKNOWN) }; ZONES]));
        zones.iter().for_each(|zone| zone.store(UNKNOWN, Relaxed));
    }

    /// The end of the zone that begins at bucket `index`, where nothing in it is dead.
    pub(super) fn pass_over(&self, buckets: usize, index: usize, now: Tick) -> Option<usize> {
        let zone = self.starting_at(buckets, index)?;
        let soonest = zone.load(Relaxed);
        let nothing_dead = soonest > Deadline::from(now).order();
        nothing_dead.then(|| buckets.min(index + (1 << shift(buckets))))
    }

    /// A look at the window from bucket `start` found that what stays there lives until `soonest`;
    /// `whole` where it was looked at to its end.
    pub(super) fn learn(&self, buckets: usize, start: usize, soonest: u64, whole: bool) {
        let Some(zones) = self.0.get() else { return };
        if let Some(zone) = self.starting_at(buckets, start) {
            zone.store(u64::MAX, Relaxed);
        }
        keep_sooner(&zones[start >> shift(buckets)], if whole { soonest } else { UNKNOWN });
    }

    fn starting_at(&self, buckets: usize, index: usize) -> Option<&AtomicU64> {
        let shift = shift(buckets);
        let starts = index & ((1 << shift) - 1) == 0;
        starts.then_some(&self.0.get()?[index >> shift])
    }
}

/// A zone is a whole number of windows; all zones are equally long.
#[inline]
fn shift(buckets: usize) -> u32 {
    (buckets / ZONES).max(WINDOW).trailing_zeros()
}

#[inline]
fn keep_sooner(zone: &AtomicU64, soonest: u64) {
    if soonest < zone.load(Relaxed) {
        zone.store(soonest, Relaxed);
    }
}
