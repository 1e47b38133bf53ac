//! The sweeper at work: the task that sweeps at each tick, and a sweep step by step.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash},
    mem::replace,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use rand::seq::SliceRandom;
use tokio::time::Interval;
use tracing::Span;

use super::{config::Sweep, report::SweepReport};
use crate::engine::{
    event::Publisher,
    panics,
    state::SharedState,
    store::{Departure, LockWait, ShardPass, Store, TagPurge},
};

/// How often a locked shard is come back to before the sweeper keeps those out who come to read.
const TRIES: u32 = 3;

/// For how long it then tries, first and at most. It never waits: its worker has others to run.
const FIRST_SPIN: Duration = Duration::from_micros(50);
const LONGEST_SPIN: Duration = Duration::from_micros(3_200);

/// Work between two yields to the runtime, in entries looked at: about 100 µs. A yield wakes a second
/// worker, which costs ten.
const YIELD_AFTER: u64 = 8_192;

/// What one costs that expires (it is moved, told of and dropped) or moves to another table, in entries looked at.
const MOVE_COSTS: u64 = 16;

/// How many looks for what was removed by its tags there are between two yields.
const TAGGED_AT_ONCE: usize = 16;

/// How many shards a tick asks whether they are sparse; one that is ends it. To ask all would be most of what a tick
/// costs that has nothing to do.
const LOOKS_AT_SPARSE: usize = 8;

/// Ticks in a row that had nothing to do before the sweeper rests, and how many it rests at a time. By then the memory of
/// what has left was given back.
const TICKS_BEFORE_REST: u32 = 300;
const TICKS_OF_REST: u32 = 10;

/// Sweeps in a row that were cut by the budget before somebody is warned.
const CUTS_BEFORE_WARNING: u32 = 3;

/// A sweep under way. It holds nothing of the cache between two steps.
pub(crate) struct SweepRun<K, V> {
    /// How it is set; another setting is for the next one.
    sweep: Sweep,
    report: SweepReport,
    /// Entries that went to another table: work, but none that anybody asked for.
    moved: u64,
    /// A look for what was removed by its tags, before all else.
    tagged: Option<TagPurge>,
    /// Where the present pass has still to look, and how often each place was found locked.
    todo: VecDeque<(ShardPass, u32)>,
    /// What the report said when the present pass began.
    at_pass: (u64, u64),
    /// Kept for its memory.
    dead: Vec<Departure<K, V>>,
    span: Span,
}

pub(crate) enum Step {
    /// Yield to the runtime, then go on.
    Yield,
    /// A lossless subscriber has no room.
    HeldBack,
    Done,
}

/// The task: sweeps at each tick, until the cache is gone.
pub(super) async fn run<K, V, S>(
    shared: Weak<SharedState<K, V, S>>,
    publisher: Arc<Publisher<K, V>>,
    mut interval: Interval,
) where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let mut cuts = 0;
    let mut next_to_shrink = 0;
    let mut idle_ticks = 0;
    let mut departures = 0;
    loop {
        if idle_ticks >= TICKS_BEFORE_REST {
            // What is due sooner may be far from dead: then there is a tick, and the next rest.
            if !rest(&shared, &publisher, interval.period()).await {
                idle_ticks = 0;
            }
        }
        interval.tick().await;
        let Some(cache) = shared.upgrade() else { return };
        if cache.is_paused() {
            continue;
        }
        let mut sweep = SweepRun::new(&cache);
        // Not kept while waiting: the last handle of the user must be the last, and end this task.
        drop(cache);
        loop {
            let Some(cache) = shared.upgrade() else { return };
            if cache.is_paused() {
                break;
            }
            let step = sweep.step_safely(&cache);
            drop(cache);
            match step {
                Step::Yield => tokio::task::yield_now().await,
                Step::HeldBack => publisher.wait_for_room().await,
                Step::Done => break,
            }
        }
        // Memory is given back after the sweep, when it is known what is left.
        let Some(cache) = shared.upgrade() else { return };
        let count = cache.store.shard_count();
        for _ in 0..LOOKS_AT_SPARSE.min(count) {
            let shard = next_to_shrink;
            next_to_shrink = (shard + 1) % count;
            if shrink(&cache, shard) {
                break;
            }
        }
        let report = sweep.finish(&cache);
        let before = replace(&mut departures, cache.store.counts().departures());
        let is_idle = report.looked_at < YIELD_AFTER && departures == before;
        idle_ticks = if is_idle { idle_ticks.saturating_add(1) } else { 0 };
        cuts = if report.out_of_budget { cuts + 1 } else { 0 };
        if cuts == CUTS_BEFORE_WARNING {
            tracing::warn!(
                cache = cache.name(),
                sweeps = cuts,
                budget = cache.sweep().budget,
                "sweeps are cut by their budget: dead values leave late"
            );
        }
    }
}

/// Waits for some ticks, or until somebody writes what dies before they are over; where something does so already, it
/// doesn't wait. Tells whether nobody has.
async fn rest<K, V, S>(
    shared: &Weak<SharedState<K, V, S>>,
    publisher: &Publisher<K, V>,
    every: Duration,
) -> bool
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    let rest = every.saturating_mul(TICKS_OF_REST);
    {
        let Some(cache) = shared.upgrade() else { return true };
        if !cache.store.arm_wake_deadline(cache.clock.now().later(rest.as_nanos() as u64)) {
            return true;
        }
    }
    let has_elapsed = tokio::time::timeout(rest, publisher.wake_requested()).await.is_err();
    if let Some(cache) = shared.upgrade() {
        cache.store.disarm_wake_deadline();
    }
    has_elapsed
}

impl<K, V> SweepRun<K, V>
where
    K: Hash + Eq + Clone,
{
    pub(crate) fn new<S: BuildHasher + Clone>(cache: &SharedState<K, V, S>) -> Self {
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
        let (todo, dead) = (VecDeque::new(), Vec::new());
        let tagged = cache.store.tag_pass();
        let mut sweep = Self {
            sweep: cache.sweep(),
            report,
            moved: 0,
            tagged,
            todo,
            at_pass: (0, 0),
            dead,
            span,
        };
        sweep.begin_pass(cache);
        sweep
    }

    /// Works until it is time to yield. What panics in user code is logged, and ends the sweep.
    pub(crate) fn step_safely<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
    ) -> Step {
        let step =
            catch_unwind(AssertUnwindSafe(|| self.span.clone().in_scope(|| self.step(cache))));
        step.unwrap_or_else(|_| {
            tracing::error!(cache = cache.name(), "a sweep panicked; the next one goes on");
            Step::Done
        })
    }

    /// The report of a sweep that is done.
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
        if self.remove_tagged(cache) {
            self.report.elapsed += cache.clock.now().since(start);
            return Step::Yield;
        }
        let step = loop {
            let Some((begin_shard_pass, tries)) = self.todo.pop_front() else {
                match self.end_pass(cache, self.report.elapsed + now.since(start)) {
                    Some(step) => break step,
                    None => continue,
                }
            };
            let step = self.look(cache, begin_shard_pass, tries);
            now = cache.clock.now();
            if let Some(step) = step {
                break step;
            }
            if self.report.passes > 1 && self.is_spent(self.report.elapsed + now.since(start)) {
                break Step::Done;
            }
            let looked_at = self.report.looked_at - before.looked_at;
            let expired = self.report.expired - before.expired;
            if looked_at + MOVE_COSTS * (expired + self.moved - moved_before) >= YIELD_AFTER {
                break Step::Yield;
            }
        };
        self.report.elapsed += cache.clock.now().since(start);
        step
    }

    /// Takes out some of what was removed by its tags; tells whether there may be more.
    fn remove_tagged<S: BuildHasher + Clone>(&mut self, cache: &SharedState<K, V, S>) -> bool {
        let Some(pass) = &mut self.tagged else { return false };
        for _ in 0..TAGGED_AT_ONCE {
            let has_more = cache.store.remove_tagged(pass, &cache.clock);
            cache.publisher.flush();
            if !has_more {
                self.tagged = None;
                return false;
            }
        }
        true
    }

    /// Looks at the next windows of a shard.
    fn look<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
        mut begin_shard_pass: ShardPass,
        tries: u32,
    ) -> Option<Step> {
        let room = cache.publisher.room();
        let lock_wait = match tries.checked_sub(TRIES) {
            None => LockWait::None,
            Some(spins) => LockWait::Spin(LONGEST_SPIN.min(FIRST_SPIN * 2_u32.pow(spins.min(10)))),
        };
        let share = |buckets| self.sweep.share_of(buckets);
        let (store, clock) = (&cache.store, &cache.clock);
        let look = store.sweep_windows(
            &mut begin_shard_pass,
            share,
            clock,
            room,
            lock_wait,
            &mut self.dead,
        );
        let Some(look) = look else {
            // The others first: by then whoever holds the lock has mostly gone.
            self.todo.push_back((begin_shard_pass, tries + 1));
            return (lock_wait != LockWait::None).then_some(Step::Yield);
        };
        // After the lock of the shard, and before the next window: who waits for the event need not wait for the
        // whole sweep.
        cache.publisher.flush();
        let panicked = panics::drop_all(self.dead.drain(..));
        if panicked > 0 {
            tracing::error!(cache = cache.name(), panicked, "the Drop of expired values panicked");
        }
        self.report.looked_at += look.looked_at as u64;
        self.report.expired += look.expired as u64;
        self.moved += look.moved as u64;
        if !begin_shard_pass.is_done() {
            self.todo.push_front((begin_shard_pass, 0));
        }
        self.report.held_back |= look.held_back;
        look.held_back.then_some(Step::HeldBack)
    }

    /// Begins the next pass where the ratio asks for one and the budget lasts.
    fn end_pass<S: BuildHasher + Clone>(
        &mut self,
        cache: &SharedState<K, V, S>,
        spent: Duration,
    ) -> Option<Step> {
        let looked_at = self.report.looked_at - self.at_pass.0;
        let expired = self.report.expired - self.at_pass.1;
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
        let mut order: Vec<usize> = (0..cache.store.shard_count()).filter(is_due).collect();
        // In random order, so that where a budget cuts sweeps short no shard is always last.
        order.shuffle(&mut *cache.random());
        self.todo
            .extend(order.into_iter().map(|shard| (Store::<K, V, S>::begin_shard_pass(shard), 0)));
        self.at_pass = (self.report.looked_at, self.report.expired);
        self.report.passes += 1;
    }
}

/// Begins to give back the memory of a shard that is sparse; tells whether it does.
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
            "the Hash of keys panicked as a table moved"
        );
    }
    shrunk
}
