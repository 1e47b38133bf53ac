//! One sweep, step by step: the order of the shards, and whether another pass follows.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use rand::seq::SliceRandom;
use tracing::Span;

use super::{config::Sweep, report::SweepReport};
use crate::engine::{
    event::Cause,
    panics,
    shared_state::SharedState,
    store::{Departure, LockWait, PurgeRest, ShardPass, StepLimits, Store, TagSweep},
};

/// Number of times that a locked shard is retried before the sweeper closes the shard's gate to new readers.
const TRIES_BEFORE_GATE: u32 = 3;

/// First and longest time to spin for such a shard. The sweeper never blocks, because its worker has other tasks to
/// run.
const FIRST_SPIN: Duration = Duration::from_micros(50);
const MAX_SPIN: Duration = Duration::from_micros(3_200);

/// Work between two yields to the runtime, in examined entries: about 100 µs. A yield may wake a second worker, which
/// costs 10 µs.
pub(super) const YIELD_AFTER: u64 = 8_192;

/// Cost of an entry that expires (it is moved, published and dropped) or moves to another table, in examined entries.
const MOVE_COST: u64 = 16;

/// Number of steps of the tag purge, or of the removal of failed loads, between two yields.
const PURGE_STEPS: usize = 16;

/// Work and buffers that a sweep leaves to the next one.
pub(crate) struct Leftovers<K, V> {
    /// Purge of entries whose tag was removed, if it has not ended.
    pub(super) tag_purge: Option<TagSweep>,
    /// Empty; kept for its allocation, and so is the next one. An allocation of kilobytes lets the allocator of glibc
    /// merge all memory freed since the last one, and a task that frees thousands of keys per second has to wait for
    /// it.
    pending: VecDeque<PendingShard>,
    unrecorded: Vec<Departure<K, V>>,
}

/// The rest of a shard's pass, and the number of times that the shard was found locked.
type PendingShard = (ShardPass, u32);

/// A sweep in progress. It holds nothing of the cache between two steps.
pub(crate) struct SweepRun<K, V> {
    /// Settings at the start of the sweep; changes apply to the next one.
    sweep: Sweep,
    report: SweepReport,
    /// Number of entries moved to another table. They count as work, but not as examined.
    moved: u64,
    /// Purge of entries whose tag was removed. Those that depart as removed are purged before the first pass, and those
    /// that had expired after the last one, so that they do not take the capacity of a subscriber from entries that
    /// expire now.
    tag_purge: Option<TagSweep>,
    /// True if all passes are done, and only the purge may be left.
    is_expired: bool,
    /// Shards that the current pass has not finished, with the number of times that each was found locked.
    pending: VecDeque<PendingShard>,
    /// Examined and expired entries of the report when the current pass began.
    pass_start: (u64, u64),
    /// Expired entries that no subscriber receives, to be dropped after unlock; kept for its allocation.
    unrecorded: Vec<Departure<K, V>>,
    span: Span,
}

/// Next action of the driver of a sweep.
pub(crate) enum Step {
    /// Yield to the runtime, then continue.
    Yield,
    /// Wait for a lossless subscriber without free capacity for expirations.
    HeldBack,
    /// Wait for one without free capacity for events of this cause, but only until the next sweep: the passes are done,
    /// and only the purge of entries with removed tags is left.
    PurgeHeldBack(Cause),
    Done,
}

impl<K, V> SweepRun<K, V>
where
    K: Hash + Eq + Clone,
{
    /// Begins a sweep, which continues the purge of the last one.
    pub(crate) fn new<S: BuildHasher + Clone>(
        cache: &SharedState<K, V, S>,
        leftovers: Leftovers<K, V>,
    ) -> Self {
        let span = tracing::debug_span!(
            "sweep",
            cache = cache.name(),
            passes = tracing::field::Empty,
            looked_at = tracing::field::Empty,
            expired = tracing::field::Empty,
            elapsed_us = tracing::field::Empty,
            out_of_budget = tracing::field::Empty,
            held_back = tracing::field::Empty,
        );
        let report = SweepReport::default();
        let Leftovers { tag_purge, pending, unrecorded } = leftovers;
        let tag_purge = cache.store.next_tag_sweep(tag_purge);
        let mut sweep = Self {
            sweep: cache.sweep(),
            report,
            moved: 0,
            tag_purge,
            is_expired: false,
            pending,
            pass_start: (0, 0),
            unrecorded,
            span,
        };
        sweep.begin_pass(cache);
        sweep
    }

    /// Sweeps until it is time to yield. A panic in user code is logged, and ends the sweep.
    pub(crate) fn step_safely<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
    ) -> Step {
        let step =
            catch_unwind(AssertUnwindSafe(|| self.span.clone().in_scope(|| self.step(cache))));
        step.unwrap_or_else(|_| {
            tracing::error!(cache = cache.name(), "sweep panicked, the next sweep continues");
            Step::Done
        })
    }

    /// Evicts deferred weight and purges values with removed tags, while a lossless subscriber holds expirations back.
    /// Returns whether there is more to do.
    pub(super) fn purge_safely<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
    ) -> bool {
        let purge = || {
            if self.evict_deferred(cache).or_else(|| self.remove_failed(cache)).is_some() {
                return true;
            }
            // Tags may have been removed since the sweep began.
            self.tag_purge = cache.store.next_tag_sweep(self.tag_purge.take());
            matches!(self.remove_tagged(cache, Cause::Removed), Some(Step::Yield))
        };
        catch_unwind(AssertUnwindSafe(purge)).unwrap_or_else(|_| {
            tracing::error!(cache = cache.name(), "sweep panicked, the next sweep continues");
            false
        })
    }

    /// Returns what is left for the next sweep.
    pub(super) fn take_leftovers(&mut self) -> Leftovers<K, V> {
        self.pending.clear();
        self.unrecorded.clear();
        Leftovers {
            tag_purge: self.tag_purge.take(),
            pending: mem::take(&mut self.pending),
            unrecorded: mem::take(&mut self.unrecorded),
        }
    }

    /// Returns the report of a finished sweep.
    pub(crate) fn finish<S: BuildHasher + Clone>(
        self,
        cache: &SharedState<K, V, S>,
    ) -> SweepReport {
        let report = self.report;
        self.span.record("passes", report.passes);
        self.span.record("looked_at", report.looked_at);
        self.span.record("expired", report.expired);
        self.span.record("elapsed_us", report.elapsed.as_micros() as u64);
        self.span.record("out_of_budget", report.out_of_budget);
        self.span.record("held_back", report.held_back);
        cache.record_sweep(&report);
        report
    }

    fn step<S: BuildHasher + Clone>(&mut self, cache: &SharedState<K, V, S>) -> Step {
        let (before, moved_before) = (self.report, self.moved);
        let start = cache.clock.now();
        let mut now = start;
        let step = self.evict_deferred(cache).or_else(|| self.remove_failed(cache));
        let purged = step.or_else(|| self.remove_tagged(cache, Cause::Removed));
        if let Some(Step::Yield) = purged {
            self.report.elapsed += cache.clock.now().since(start);
            return Step::Yield;
        }
        // A full subscriber of removals does not hold expirations back.
        let mut step = loop {
            if self.is_expired {
                break Step::Done;
            }
            let Some((shard_pass, tries)) = self.pending.pop_front() else {
                match self.end_pass(cache, self.report.elapsed + now.since(start)) {
                    Some(step) => break step,
                    None => continue,
                }
            };
            let step = self.sweep_shard(cache, shard_pass, tries);
            now = cache.clock.now();
            if let Some(step) = step {
                break step;
            }
            if self.report.passes > 1 && self.is_spent(self.report.elapsed + now.since(start)) {
                break Step::Done;
            }
            let looked_at = self.report.looked_at - before.looked_at;
            let expired = self.report.expired - before.expired;
            if looked_at + MOVE_COST * (expired + self.moved - moved_before) >= YIELD_AFTER {
                break Step::Yield;
            }
        };
        if let Step::Done = step {
            self.is_expired = true;
            let purged_stale = self.remove_tagged(cache, Cause::Expired);
            step = purged_stale.or(purged).unwrap_or(Step::Done);
        }
        self.report.elapsed += cache.clock.now().since(start);
        step
    }

    /// Evicts a part of the weight that cancelled writes left above the bound; returns `None` if there is no more.
    fn evict_deferred<S: BuildHasher + Clone>(&self, cache: &SharedState<K, V, S>) -> Option<Step> {
        if !cache.store.has_deferred_evictions() {
            return None;
        }
        let has_more = cache.store.evict_deferred(&cache.clock);
        cache.publisher.flush();
        has_more.then_some(Step::Yield)
    }

    /// Removes some of the failed loads that have ended; returns `None` if there are no more.
    fn remove_failed<S>(&self, cache: &SharedState<K, V, S>) -> Option<Step> {
        let failed_loads = cache.failed_loads.as_ref()?;
        for _ in 0..PURGE_STEPS {
            report_panics(cache.name(), failed_loads.remove_ended()?);
        }
        Some(Step::Yield)
    }

    /// Purges some of the entries whose tag was removed, of those that depart with `cause`: `Removed` or `Expired`.
    /// Returns `None` if there are no more.
    fn remove_tagged<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
        cause: Cause,
    ) -> Option<Step> {
        let purge = self.tag_purge.as_mut()?;
        for _ in 0..PURGE_STEPS {
            let room = cache.publisher.room(cause);
            let (removed, rest) = cache.store.remove_tagged(purge, &cache.clock, cause, room);
            cache.publisher.flush();
            if cause == Cause::Expired {
                self.report.expired += removed as u64;
            }
            match rest {
                PurgeRest::None => {
                    self.tag_purge.take_if(|purge| purge.is_done());
                    return None;
                }
                PurgeRest::HeldBack => {
                    self.report.held_back = true;
                    return Some(Step::PurgeHeldBack(cause));
                }
                PurgeRest::Some => {}
            }
        }
        Some(Step::Yield)
    }

    /// Examines the next windows of a shard.
    fn sweep_shard<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
        mut shard_pass: ShardPass,
        tries: u32,
    ) -> Option<Step> {
        let room = cache.publisher.room(Cause::Expired);
        let lock_wait = match tries.checked_sub(TRIES_BEFORE_GATE) {
            None => LockWait::None,
            Some(spins) => LockWait::Spin(MAX_SPIN.min(FIRST_SPIN * 2_u32.pow(spins.min(10)))),
        };
        let share = |buckets| self.sweep.share_of(buckets);
        let (store, clock) = (&cache.store, &cache.clock);
        let limits = StepLimits { max_expired: room, lock_wait };
        let swept =
            store.sweep_windows(&mut shard_pass, share, clock, limits, &mut self.unrecorded);
        let Some(swept) = swept else {
            // The other shards first: by then, the lock is probably free.
            self.pending.push_back((shard_pass, tries + 1));
            return (lock_wait != LockWait::None).then_some(Step::Yield);
        };
        // Without the lock of the shard, and before the next window: waiters of an event must not wait for the whole
        // sweep.
        cache.publisher.flush();
        report_panics(cache.name(), panics::drop_all(self.unrecorded.drain(..)));
        self.report.looked_at += swept.looked_at as u64;
        self.report.expired += swept.expired as u64;
        self.moved += swept.moved as u64;
        if !shard_pass.is_done() {
            self.pending.push_front((shard_pass, 0));
        }
        self.report.held_back |= swept.held_back;
        swept.held_back.then_some(Step::HeldBack)
    }

    /// Begins the next pass if the ratio is reached and the budget lasts; otherwise ends the sweep.
    fn end_pass<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
        spent: Duration,
    ) -> Option<Step> {
        let looked_at = self.report.looked_at - self.pass_start.0;
        let expired = self.report.expired - self.pass_start.1;
        if expired == 0 || (expired as f64) < self.sweep.repeat_at * looked_at as f64 {
            return Some(Step::Done);
        }
        if self.is_spent(spent) {
            return Some(Step::Done);
        }
        self.begin_pass(cache);
        None
    }

    fn is_spent(&mut self, spent: Duration) -> bool {
        let is_spent = self.sweep.allowance().is_some_and(|allowance| spent >= allowance);
        self.report.out_of_budget |= is_spent;
        is_spent
    }

    fn begin_pass<S: BuildHasher + Clone>(&mut self, cache: &SharedState<K, V, S>) {
        let now = cache.clock.now();
        let is_due = |shard: &usize| !cache.store.has_nothing_due(*shard, now);
        let due = (0..cache.store.shard_count()).filter(is_due);
        self.pending.extend(due.map(|shard| (Store::<K, V, S>::begin_shard_pass(shard), 0)));
        // In random order, so that no shard is always last if the budget stops the sweeps.
        self.pending.make_contiguous().shuffle(&mut *cache.random());
        self.pass_start = (self.report.looked_at, self.report.expired);
        self.report.passes += 1;
    }
}

impl<K, V> Default for Leftovers<K, V> {
    fn default() -> Self {
        Self { tag_purge: None, pending: VecDeque::new(), unrecorded: Vec::new() }
    }
}

/// Logs the number of expired entries or errors whose drop panicked.
fn report_panics(cache: &str, panicked: usize) {
    if panicked > 0 {
        tracing::error!(cache, panicked, "drop of expired values panicked");
    }
}

/// Starts to return the memory of a sparse shard; returns whether the shard is sparse.
pub(crate) fn shrink<K, V, S>(cache: &SharedState<K, V, S>, shard: usize) -> bool
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    let shrunk = cache.store.shrink(shard);
    let unhashed = cache.store.take_unhashed();
    if unhashed > 0 {
        tracing::error!(
            cache = cache.name(),
            unhashed,
            "hash of keys panicked while a table was resized"
        );
    }
    shrunk
}
