//! The sweeper task: when it sweeps and for how long it rests, and when it warns that sweeps exceed their budget.

use std::{
    hash::{BuildHasher, Hash},
    mem::{replace, take},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, Interval, timeout, timeout_at};

use super::sweep_run::{Leftovers, Step, SweepRun, YIELD_AFTER, shrink};
use crate::engine::{
    event::{Cause, Publisher},
    shared_state::SharedState,
};

/// Number of shards that a tick checks for shrinking; it stops at the first one that shrinks. Checking all shards would
/// be most of the cost of a tick without due entries.
const SHRINK_CHECKS_PER_TICK: usize = 8;

/// Number of consecutive ticks without work before the sweeper rests. After 300 ticks, the memory of removed entries
/// has usually been returned. If no table is large enough to be shrunk, it rests without them.
const TICKS_BEFORE_REST: u32 = 300;

/// Number of ticks of the first rest, and of the longest one: each rest that no write ends is twice as long as the one
/// before. A rest ends at the tick at which the next entry is due. It ends without due entries, too, since tables may
/// have grown and become sparse in the meantime.
const FIRST_REST_TICKS: u32 = 10;
const MAX_REST_TICKS: u32 = 160;

/// Number of consecutive sweeps over budget before a warning is logged.
const SWEEPS_BEFORE_WARNING: u32 = 3;

/// Sweeps at each tick, until the cache is dropped.
pub(super) async fn run<K, V, S>(
    shared: Weak<SharedState<K, V, S>>,
    publisher: Arc<Publisher<K, V>>,
    mut interval: Interval,
) where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let mut history = History::new();
    let mut leftovers = Leftovers::default();
    loop {
        let tick = interval.tick().await;
        let Some(cache) = shared.upgrade() else { return };
        if cache.is_paused() {
            continue;
        }
        let mut sweep = SweepRun::new(&cache, take(&mut leftovers));
        // Dropped before each await: while the task holds it, dropping the last handle would not end the cache.
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
                Step::PurgeHeldBack(cause) => {
                    // More entries expire, so the next sweep is not delayed. It continues the purge.
                    let next_tick = tick + interval.period();
                    if timeout_at(next_tick, publisher.wait_for_room(cause)).await.is_err() {
                        break;
                    }
                }
                Step::HeldBack => {
                    let every = interval.period();
                    while timeout(every, publisher.wait_for_room(Cause::Expired)).await.is_err() {
                        purge(&shared, &mut sweep).await;
                    }
                }
                Step::Done => break,
            }
        }
        let Some(cache) = shared.upgrade() else { return };
        leftovers = sweep.take_leftovers();
        history.end_sweep(&cache, sweep);
        // It does not rest while it waits to purge.
        let may_rest = leftovers.tag_purge.is_none();
        let wake_at =
            may_rest.then(|| history.end_of_rest(&cache, tick, interval.period())).flatten();
        drop(cache);
        if let Some(wake_at) = wake_at {
            let has_elapsed = timeout_at(wake_at, publisher.wake_requested()).await.is_err();
            // After a write, the next tick of the same rhythm.
            let next = if has_elapsed { 0 } else { 1 };
            let ticks = ticks_since(tick, Instant::now().min(wake_at), interval.period()) + next;
            interval.reset_at(tick + interval.period() * ticks);
            history.end_rest(has_elapsed);
            if let Some(cache) = shared.upgrade() {
                cache.store.disarm_wake_deadline();
            }
        }
    }
}

/// Does the work of a sweep that can be done while a lossless subscriber has no capacity for expirations. It may never
/// read them.
async fn purge<K, V, S>(shared: &Weak<SharedState<K, V, S>>, sweep: &mut SweepRun<K, V>)
where
    K: Hash + Eq + Clone,
    S: BuildHasher + Clone,
{
    loop {
        let Some(cache) = shared.upgrade() else { return };
        let has_more = !cache.is_paused() && sweep.purge_safely(&cache);
        drop(cache);
        if !has_more {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Earlier sweeps of a task, which decide when it rests and what it shrinks next.
struct History {
    /// Number of consecutive sweeps over budget.
    over_budget: u32,
    next_to_shrink: usize,
    /// Number of consecutive shards whose tables are too small to be shrunk.
    small_shards: usize,
    /// Number of consecutive ticks without work.
    idle_ticks: u32,
    /// True if the last sweep found nothing to do.
    is_idle: bool,
    /// Number of departures before the last sweep.
    departures: u64,
    rest_ticks: u32,
}

impl History {
    fn new() -> Self {
        Self {
            over_budget: 0,
            next_to_shrink: 0,
            small_shards: 0,
            idle_ticks: 0,
            is_idle: false,
            departures: 0,
            rest_ticks: FIRST_REST_TICKS,
        }
    }

    /// Shrinks a sparse shard, records the sweep, and warns if sweeps exceed their budget again and again.
    fn end_sweep<K, V, S>(&mut self, cache: &SharedState<K, V, S>, sweep: SweepRun<K, V>)
    where
        K: Hash + Eq + Clone,
        S: BuildHasher + Clone,
    {
        // After the sweep, when the number of remaining entries is known.
        let count = cache.store.shard_count();
        for _ in 0..SHRINK_CHECKS_PER_TICK.min(count) {
            let shard = self.next_to_shrink;
            self.next_to_shrink = (shard + 1) % count;
            self.small_shards = if cache.store.is_small(shard) { self.small_shards + 1 } else { 0 };
            if shrink(cache, shard) {
                break;
            }
        }
        let report = sweep.finish(cache);
        let before = replace(&mut self.departures, cache.store.counts().departures());
        let examined_little = report.looked_at < YIELD_AFTER;
        self.is_idle = examined_little && self.departures == before;
        self.idle_ticks = match () {
            () if examined_little && self.small_shards >= count => TICKS_BEFORE_REST,
            () if self.is_idle => self.idle_ticks.saturating_add(1),
            () => 0,
        };
        self.over_budget = if report.out_of_budget { self.over_budget + 1 } else { 0 };
        if self.over_budget == SWEEPS_BEFORE_WARNING {
            tracing::warn!(
                cache = cache.name(),
                sweeps = self.over_budget,
                budget = cache.sweep().budget,
                "sweeps exceed their budget, expired entries are removed late"
            );
        }
    }

    /// Returns when a rest ends that begins now; `None` if there were too few idle ticks.
    fn end_of_rest<K, V, S>(
        &self,
        cache: &SharedState<K, V, S>,
        last_tick: Instant,
        every: Duration,
    ) -> Option<Instant>
    where
        K: Hash + Eq,
        S: BuildHasher + Clone,
    {
        match self.idle_ticks >= TICKS_BEFORE_REST {
            true => end_of_rest(cache, last_tick, every, self.rest_ticks),
            false => None,
        }
    }

    /// Chooses the length of the next rest. The rest that ends now has elapsed, or a write ended it.
    fn end_rest(&mut self, has_elapsed: bool) {
        self.rest_ticks = match has_elapsed && self.is_idle {
            true => MAX_REST_TICKS.min(2 * self.rest_ticks),
            false => FIRST_REST_TICKS,
        };
    }
}

/// Returns the tick at which a rest ends that begins now: after `max_ticks`, or when the next entry is due. A write of
/// an entry that is due earlier ends it, too. Returns `None` if there is not more than one tick to rest for.
fn end_of_rest<K, V, S>(
    cache: &SharedState<K, V, S>,
    last_tick: Instant,
    every: Duration,
    max_ticks: u32,
) -> Option<Instant>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    let now = cache.clock.now();
    let longest = every.saturating_mul(max_ticks);
    let until_end = || cache.failed_loads.as_ref().and_then(|failed| failed.until_end(now));
    let until_due = cache.store.until_due(now).into_iter().chain(until_end());
    let rest = until_due.fold(longest, Duration::min);
    let at = last_tick.checked_add(last_tick.elapsed().checked_add(rest)?)?;
    // Rounded up to a tick.
    let ticks = ticks_since(last_tick, at - Duration::from_nanos(1), every) + 1;
    let wake_at = last_tick.checked_add(every.checked_mul(ticks)?)?;
    let is_worthwhile = wake_at.saturating_duration_since(Instant::now()) > every;
    let until = now.later(u64::try_from(rest.as_nanos()).ok()?);
    if !is_worthwhile || !cache.store.arm_wake_deadline(until) {
        return None;
    }
    // Again: a failure that is recorded later finds the wake deadline armed.
    if until_end().is_some_and(|until_end| until_end < rest) {
        cache.store.disarm_wake_deadline();
        return None;
    }
    Some(wake_at)
}

/// Returns the number of whole ticks from `tick` to `at`.
fn ticks_since(tick: Instant, at: Instant, every: Duration) -> u32 {
    let ticks = at.saturating_duration_since(tick).as_nanos() / every.as_nanos();
    u32::try_from(ticks).unwrap_or(u32::MAX - 1)
}
