//! Looking for what is dead, window by window.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{
    ShardState, Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    window::{self, ShardWriteGuard, WINDOW},
};
use crate::engine::{
    clock::{Deadline, Now},
    sync::atomic::Ordering::Relaxed,
};

/// How many windows are looked at under one lock: about 1 µs.
const WINDOWS_PER_LOCK: usize = 4;

/// What a pass still has to look at in one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPass {
    pub(crate) shard: usize,
    /// Buckets; `None` until the first look knows how many there are.
    remaining: Option<usize>,
}

/// What may be done where the shard is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// Nothing: come back later.
    None,
    /// To try again for so long, and keep those out who come to read.
    Spin(Duration),
    /// To wait, as a writer does.
    Wait,
}

/// What one look saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowReport {
    pub(crate) looked_at: usize,
    pub(crate) expired: usize,
    /// To another table: nothing was looked at yet.
    pub(crate) moved: usize,
    /// Something dead stays because there was no room for it.
    pub(crate) held_back: bool,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// A look at `share` of a shard, to be taken window by window.
    pub(crate) fn begin_shard_pass(shard: usize) -> ShardPass {
        ShardPass { shard, remaining: None }
    }

    /// Looks at the next windows of a visit in which something may be dead, and takes out what is, at most `eviction`: to
    /// the journal where somebody wants to hear of it, else to `dead`.
    ///
    /// `None` where the shard is locked, and stays so for longer than there is `lock_wait`. [`ShardPass::is_done`]
    /// tells the end.
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
        self.shards.set_held_long(shard, true);
        let report = self.sweep_locked(locked, shard_pass, share, now, max_expired, expired);
        self.shards.set_held_long(shard, false);
        Some(report)
    }

    fn sweep_locked(
        &self,
        mut locked: ShardWriteGuard<'_, K, V, ShardState<K, V>>,
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
        // Read under the lock, so that the stamps of a key never go back.
        let now = now.tick();
        let stale_cutoff = self.stale_cutoff(now);
        let (table, ShardState { index, side_tables, waiters, cursor, moved, .. }) = locked.parts();
        let buckets = table.buckets();
        if table.is_empty() {
            shard_pass.remaining = Some(0);
            index.clear();
            self.meta[shard_pass.shard]
                .earliest_expiry
                .store(Deadline::PERSISTENT.order(), Relaxed);
            return WindowReport::default();
        }
        // After a move an entry may lie behind the cursor and not have been looked at: the whole shard is, once, so
        // that the bound on staleness holds for it too.
        if *moved {
            *moved = false;
            *cursor = 0;
            shard_pass.remaining = Some(buckets);
        }
        // Whole windows, of the table as it is now.
        let remaining = shard_pass.remaining.unwrap_or_else(|| share(buckets));
        let mut remaining = remaining.next_multiple_of(WINDOW).min(buckets);
        let mut report = WindowReport::default();
        let before = expired.len();
        index.rebase(stale_cutoff);
        let (mut windows, mut freed) = (0, 0);
        while remaining > 0 && windows < WINDOWS_PER_LOCK {
            let end = buckets.min(*cursor + remaining);
            let Some(start) = index.next_due(*cursor, end, stale_cutoff) else {
                remaining -= end - *cursor;
                *cursor = end % buckets;
                continue;
            };
            windows += 1;
            let max_expired = max_expired - (expired.len() - before);
            let taken = |bucket, key, entry: Entry<V>| {
                freed += side_tables.departed(bucket);
                let mut departure = entry.depart(key, Cause::Expired, now);
                if let Some(waiters) = waiters {
                    departure.waiters = waiters
                        .take_departure_waiters(&departure.key, |key| self.hash_or_zero(key));
                }
                expired.push(departure);
            };
            let end = buckets.min(start + WINDOW);
            let (looked_at, stop, earliest) =
                window::take_expired(table, start..end, max_expired, stale_cutoff, taken);
            report.looked_at += looked_at;
            remaining -= start - *cursor;
            *cursor = start;
            if stop < end {
                index.mark_due(start);
                report.held_back = true;
                break;
            }
            index.set_window(start, earliest);
            remaining -= end - start;
            *cursor = end % buckets;
        }
        if remaining == 0 {
            let earliest = index.recompute_earliest();
            self.meta[shard_pass.shard].earliest_expiry.store(earliest.order(), Relaxed);
        }
        shard_pass.remaining = Some(remaining);
        report.expired = expired.len() - before;
        // Under the lock, so that nobody can write a new value to one of these keys and be told of first.
        self.journal.record_all(shard_pass.shard, Cause::Expired, expired);
        bump(&self.meta[shard_pass.shard].departures.expired, report.expired as u64);
        self.release(freed);
        report
    }

    fn lock(
        &self,
        shard: usize,
        lock_wait: LockWait,
    ) -> Option<ShardWriteGuard<'_, K, V, ShardState<K, V>>> {
        match lock_wait {
            LockWait::None => self.shards.try_write(shard),
            LockWait::Wait => Some(self.shards.write(shard)),
            LockWait::Spin(time) => {
                let started = std::time::Instant::now();
                self.shards.try_write_while(shard, || started.elapsed() < time)
            }
        }
    }
}

impl ShardPass {
    pub(crate) fn is_done(&self) -> bool {
        self.remaining == Some(0)
    }
}
