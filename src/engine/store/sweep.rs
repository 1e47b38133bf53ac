//! Sweeping: the search for expired entries, window by window.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{
    Store,
    entry::{Cause, Departure},
    shard::Shard,
    window::{self, WINDOW},
};
use crate::engine::{
    clock::{Deadline, Now},
    sync::atomic::Ordering::Relaxed,
};

/// Number of windows that are examined under one lock, which takes about 1 µs.
const WINDOWS_PER_LOCK: usize = 4;

/// The part of one shard that a pass has not examined yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPass {
    pub(crate) shard: usize,
    /// Number of buckets; `None` until the first step has seen the size of the table.
    remaining: Option<usize>,
}

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

/// The result of one step of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowReport {
    pub(crate) looked_at: usize,
    pub(crate) expired: usize,
    /// Number of entries moved out of an old table; nothing was examined then.
    pub(crate) moved: usize,
    /// True if an expired entry was left in place because `max_expired` was reached.
    pub(crate) held_back: bool,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns a pass over a share of a shard, to be examined by [`sweep_windows`](Self::sweep_windows).
    pub(crate) fn begin_shard_pass(shard: usize) -> ShardPass {
        ShardPass { shard, remaining: None }
    }

    /// Examines the next due windows of a pass and removes up to `max_expired` expired entries. Their departures are
    /// recorded in the journal, or left in `expired` if they have no subscribers.
    ///
    /// Returns `None` if the shard stays locked for longer than `lock_wait` allows. The pass has ended once
    /// [`ShardPass::is_done`].
    pub(crate) fn sweep_windows(
        &self,
        shard_pass: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: &impl Now,
        max_expired: usize,
        lock_wait: LockWait,
        expired: &mut Vec<Departure<K, V>>,
    ) -> Option<WindowReport> {
        let shard = shard_pass.shard;
        let locked = self.lock(shard, lock_wait)?;
        // Tells waiting writers to retry often: the lock is released and taken again every microsecond or so.
        self.shards.set_held_long(shard, true);
        let report = self.sweep_locked(locked, shard_pass, share, now, max_expired, expired);
        self.shards.set_held_long(shard, false);
        Some(report)
    }

    /// Does the work of [`sweep_windows`](Self::sweep_windows) with the shard locked.
    fn sweep_locked(
        &self,
        mut locked: Shard<'_, K, V, S>,
        shard_pass: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: &impl Now,
        max_expired: usize,
        expired: &mut Vec<Departure<K, V>>,
    ) -> WindowReport {
        if locked.state().old.is_some() {
            let (moved, emptied) = self.move_windows(&mut locked, shard_pass.shard);
            drop(locked);
            drop(emptied);
            return WindowReport { moved, ..WindowReport::default() };
        }
        // Evaluated under the lock, so that the times of a key's departures never decrease.
        let now = now.tick();
        let stale_cutoff = self.stale_cutoff(now);
        let (table, state) = locked.parts();
        let buckets = table.buckets();
        if table.is_empty() {
            shard_pass.remaining = Some(0);
            state.index.clear();
            self.meta[shard_pass.shard]
                .earliest_expiry
                .store(Deadline::PERSISTENT.order(), Relaxed);
            return WindowReport::default();
        }
        // Entries that changed buckets may now be behind the cursor without having been examined. The whole shard is
        // examined once, so that the bound on the expiry delay holds for them too.
        if state.moved {
            state.moved = false;
            state.cursor = 0;
            shard_pass.remaining = Some(buckets);
        }
        // Whole windows, of the table as it is now.
        let remaining = shard_pass.remaining.unwrap_or_else(|| share(buckets));
        let mut remaining = remaining.next_multiple_of(WINDOW).min(buckets);
        let mut report = WindowReport::default();
        let before = expired.len();
        state.index.rebase(stale_cutoff);
        let (mut windows, mut cursor) = (0, state.cursor);
        while remaining > 0 && windows < WINDOWS_PER_LOCK {
            let (table, state) = locked.parts();
            let end = buckets.min(cursor + remaining);
            let Some(start) = state.index.next_due(cursor, end, stale_cutoff) else {
                remaining -= end - cursor;
                cursor = end % buckets;
                continue;
            };
            windows += 1;
            let max_expired = max_expired - (expired.len() - before);
            let end = buckets.min(start + WINDOW);
            let found = window::select_expired(table, start..end, max_expired, stale_cutoff);
            for bucket in found.buckets() {
                locked.remove_into(bucket, Cause::Expired, now, expired);
            }
            report.looked_at += found.examined;
            remaining -= start - cursor;
            cursor = start;
            let index = &mut locked.parts().1.index;
            if found.stop < end {
                index.mark_due(start);
                report.held_back = true;
                break;
            }
            index.set_window(start, found.earliest);
            remaining -= end - start;
            cursor = end % buckets;
        }
        let (_, state) = locked.parts();
        state.cursor = cursor;
        if remaining == 0 {
            let earliest = state.index.recompute_earliest();
            self.meta[shard_pass.shard].earliest_expiry.store(earliest.order(), Relaxed);
        }
        shard_pass.remaining = Some(remaining);
        report.expired = expired.len() - before;
        locked.record(expired);
        report
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
        Some(Shard::new(self, guard))
    }
}

impl ShardPass {
    /// Returns true once the whole share was examined.
    pub(crate) fn is_done(&self) -> bool {
        self.remaining == Some(0)
    }
}
