//! Sweeping of one shard: the search for expired entries, window by window.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::Store;
use crate::engine::{
    clock::Now,
    event::departure::Departure,
    shard::{
        Shard,
        sweep::{ShardPass, SweepTimes, WindowReport},
    },
};

/// What to do if a shard is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// Gives up; the caller comes back later.
    None,
    /// Retries for this long, with the gate closed to new readers.
    Spin(Duration),
    /// Blocks, as a writer does.
    Wait,
}

/// Limits of one step of a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    /// Maximum number of entries to remove.
    pub(crate) max_expired: usize,
    pub(crate) lock_wait: LockWait,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns a pass over a share of a shard, to be examined by [`sweep_windows`](Self::sweep_windows).
    pub(crate) fn begin_shard_pass(shard: usize) -> ShardPass {
        ShardPass::of(shard)
    }

    /// Examines the next due windows of a pass and removes up to `limits.max_expired` expired entries. Their departures
    /// are recorded in the journal, or left in `expired` if they have no subscribers.
    ///
    /// Returns `None` if the shard stays locked for longer than `limits.lock_wait` allows. The pass has ended once
    /// [`ShardPass::is_done`].
    pub(crate) fn sweep_windows(
        &self,
        shard_pass: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: &impl Now,
        limits: StepLimits,
        expired: &mut Vec<Departure<K, V>>,
    ) -> Option<WindowReport> {
        let shard = shard_pass.shard;
        let locked = self.lock(shard, limits.lock_wait)?;
        // Tells waiting writers to retry often: the lock is released and taken again every microsecond or so.
        self.shards.set_held_long(shard, true);
        let report = match locked.unless_moving() {
            Ok(mut locked) => {
                // Evaluated under the lock, so that the times of a key's departures never decrease.
                let now = now.tick();
                let times = SweepTimes { now, stale_cutoff: self.stale_cutoff(now) };
                locked.sweep(shard_pass, share, times, limits.max_expired, expired)
            }
            Err(moved) => WindowReport { moved, ..WindowReport::default() },
        };
        self.shards.set_held_long(shard, false);
        Some(report)
    }

    /// Locks a shard, or gives up after the time that `lock_wait` allows.
    fn lock(&self, shard: usize, lock_wait: LockWait) -> Option<Shard<'_, K, V, S>> {
        let guard = match lock_wait {
            LockWait::None => self.shards.try_write(shard)?,
            LockWait::Wait => self.shards.write(shard),
            LockWait::Spin(time) => {
                let started = std::time::Instant::now();
                self.shards.try_write_while(shard, || started.elapsed() < time)?
            }
        };
        Some(Shard::new(&self.context, guard))
    }
}
