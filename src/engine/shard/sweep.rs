//! Sweeping of one shard, window by window.

use std::hash::{BuildHasher, Hash};

use super::{Shard, table::WINDOW};
use crate::engine::{
    clock::{Deadline, Tick},
    event::departure::{Cause, Departure},
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

/// The time of a sweep, read under the lock, and its stale cutoff.
#[derive(Clone, Copy)]
pub(crate) struct SweepTimes {
    pub(crate) now: Tick,
    pub(crate) stale_cutoff: Tick,
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

impl<K, V, S> Shard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// Examines the next due windows of a pass and removes up to `max_expired` expired entries. Their departures are
    /// recorded in the journal, or left in `expired` if they have no subscribers.
    pub(crate) fn sweep(
        &mut self,
        shard_pass: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        times: SweepTimes,
        max_expired: usize,
        expired: &mut Vec<Departure<K, V>>,
    ) -> WindowReport {
        let SweepTimes { now, stale_cutoff } = times;
        let (context, shard) = (self.context(), self.index());
        let (table, state) = self.parts();
        let buckets = table.buckets();
        if table.is_empty() {
            shard_pass.remaining = Some(0);
            state.index.clear();
            context.meta[shard].earliest_expiry.store(Deadline::PERSISTENT.order(), Relaxed);
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
        // The next due window, whose memory is loaded while another one is examined.
        let mut prefetched = None;
        while remaining > 0 && windows < WINDOWS_PER_LOCK {
            let (table, state) = self.parts();
            let end = buckets.min(cursor + remaining);
            let next_due = |from| {
                state
                    .index
                    .next_due(from, end, stale_cutoff)
                    .inspect(|start| table.prefetch_window(*start))
            };
            let Some(start) = prefetched.take().or_else(|| next_due(cursor)) else {
                remaining -= end - cursor;
                cursor = end % buckets;
                continue;
            };
            prefetched = next_due(buckets.min(start + WINDOW));
            windows += 1;
            let max_expired = max_expired - (expired.len() - before);
            let end = buckets.min(start + WINDOW);
            let found = table.select_expired(start..end, max_expired, stale_cutoff);
            for bucket in found.buckets() {
                self.remove_into(bucket, Cause::Expired, now, expired);
            }
            report.looked_at += found.examined;
            remaining -= start - cursor;
            cursor = start;
            let index = &mut self.parts().1.index;
            if found.stop < end {
                index.mark_due(start);
                report.held_back = true;
                break;
            }
            index.set_window(start, found.earliest);
            remaining -= end - start;
            cursor = end % buckets;
        }
        let (_, state) = self.parts();
        state.cursor = cursor;
        if remaining == 0 {
            let earliest = state.index.recompute_earliest();
            context.meta[shard].earliest_expiry.store(earliest.order(), Relaxed);
        }
        shard_pass.remaining = Some(remaining);
        report.expired = expired.len() - before;
        self.record(expired);
        report
    }

    /// Removes the expired entries of the next window that has any, as [`sweep`](Self::sweep) does. If the shard has
    /// none, returns a time before which none of its entries expires: taken from the deadlines examined, since the
    /// index may say that a window is due too early.
    pub(crate) fn expire_window(
        &mut self,
        stale_cutoff: Tick,
        now: Tick,
        expired: &mut Vec<Departure<K, V>>,
    ) -> Option<u64> {
        let (table, state) = self.parts();
        let (buckets, mut next) = (table.buckets(), 0);
        state.index.rebase(stale_cutoff);
        let mut nothing_before = state.index.next_moment(now);
        while expired.is_empty() && next < buckets {
            let (table, state) = self.parts();
            let Some(start) = state.index.next_due(next, buckets, now) else { break };
            next = buckets.min(start + WINDOW);
            let found = table.select_expired(start..next, usize::MAX, now);
            state.index.set_window(start, found.earliest);
            nothing_before = nothing_before.min(found.earliest.order());
            for bucket in found.buckets() {
                self.remove_into(bucket, Cause::Expired, now, expired);
            }
        }
        let is_found = !expired.is_empty();
        let earliest = self.parts().1.index.recompute_earliest();
        self.context().meta[self.index()].earliest_expiry.store(earliest.order(), Relaxed);
        self.record(expired);
        (!is_found).then_some(nothing_before)
    }
}

impl ShardPass {
    /// Returns a pass over a share of a shard.
    pub(crate) fn of(shard: usize) -> Self {
        Self { shard, remaining: None }
    }

    /// Returns true once the whole share was examined.
    pub(crate) fn is_done(&self) -> bool {
        self.remaining == Some(0)
    }
}
