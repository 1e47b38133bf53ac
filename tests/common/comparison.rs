//! Comparison of a cache with the [oracle](crate::oracle), call by call.

#[path = "comparison/loads.rs"]
mod loads;
#[path = "comparison/methods.rs"]
mod methods;
#[cfg(any(feature = "serde", fuzzing))]
#[path = "comparison/snapshots.rs"]
mod snapshots;
#[path = "comparison/streams.rs"]
mod streams;
#[path = "comparison/waits.rs"]
mod waits;

use std::{collections::BTreeSet, time::Duration};

use fleeting::{Cache, Sweep, Ttl};
use tokio::time::{Instant, advance};

use self::{
    loads::FailedRefreshes,
    streams::{Streams, cause},
    waits::Waits,
};
use crate::{
    calls::{Call, Setup, Span, SweeperCall},
    oracle::{BUILT, Bound, Deadline, Key, Oracle, Value, Written, weigh},
};

/// Maximum of passes times shards that a rotation may take: more would make a run too slow.
const LONGEST_ROTATION: f64 = 2_000.0;

/// Maximum of shards in which one write at the bound certainly finds all entries that were removed by tag.
const MOST_PURGED_SHARDS: usize = 512;

/// Minimum of TTLs above zero with jitter, which could otherwise round a shorter one to zero.
const SHORTEST_JITTERED: Duration = Duration::from_millis(1);

pub(crate) struct Comparison {
    cache: Cache<Key, Value>,
    oracle: Oracle,
    streams: Streams,
    waits: Waits,
    failed_refreshes: FailedRefreshes,
    #[cfg(any(feature = "serde", fuzzing))]
    snapshot: Option<snapshots::Snapshot>,
    start: Instant,
    /// Number of passes that examines every entry.
    passes: f64,
    shards: usize,
    next_value: Value,
}

impl Comparison {
    pub(crate) fn new(setup: Setup) -> Self {
        let failed_refreshes = FailedRefreshes::default();
        let cache = build(&setup, &failed_refreshes);
        let causes = setup.causes.iter().map(|it| cause(*it)).collect();
        let oracle = Oracle::new(setup.settings, causes);
        let streams = Streams::new(&cache, setup.event_capacity, setup.slow);
        Self {
            cache,
            oracle,
            streams,
            waits: Waits::default(),
            failed_refreshes,
            #[cfg(any(feature = "serde", fuzzing))]
            snapshot: None,
            start: Instant::now(),
            passes: setup.passes,
            shards: setup.shards,
            next_value: 0,
        }
    }

    pub(crate) async fn run(&mut self, call: Call) {
        self.next_value += 1;
        let written = match &call {
            Call::Write(key, _)
            | Call::Compute(key, _)
            | Call::ComputeWith(key, _)
            | Call::Load(key, ..) => Written::Key(fold_key(*key)),
            Call::WriteMany(..) | Call::LoadMany(..) => Written::Many,
            #[cfg(any(feature = "serde", fuzzing))]
            Call::Restore(_) => Written::Many,
            _ => Written::None,
        };
        match call {
            Call::Read(key, read) => self.read(fold_key(key), read).await,
            Call::ReadMany(keys) => {
                let keys = fold_keys(keys);
                let found = self.cache.get_many(&keys).await;
                let expected: Vec<_> = keys.iter().map(|key| self.oracle.get(*key)).collect();
                assert_eq!(found, expected);
            }
            Call::Write(key, write) => self.write(fold_key(key), write).await,
            Call::WriteMany(keys, ttl) => self.write_many(fold_keys(keys), ttl).await,
            Call::Fill(keys, ttl) => self.fill(keys % 1_024, ttl).await,
            Call::Deadline(key, call) => self.change_deadline(fold_key(key), call).await,
            Call::Compute(key, change) => self.compute(fold_key(key), change, false).await,
            Call::ComputeWith(key, change) => self.compute(fold_key(key), change, true).await,
            Call::Load(key, ttl, load) => self.load(fold_key(key), ttl, load).await,
            Call::LoadMany(keys, ttl) => self.load_many(fold_keys(keys), ttl).await,
            Call::Removal(removal) => self.remove(removal).await,
            Call::AwaitValue(key) => self.await_value(fold_key(key)),
            Call::AwaitRemoval(key) => self.await_removal(fold_key(key)),
            #[cfg(any(feature = "serde", fuzzing))]
            Call::Snapshot { is_compressed } => self.take_snapshot(is_compressed).await,
            #[cfg(any(feature = "serde", fuzzing))]
            Call::Restore(restore) => self.restore(restore).await,
            Call::Sweeper(call) => self.call_sweeper(call).await,
            Call::Advance(span) => self.advance(span.duration()).await,
            Call::Iterate => self.iterate(),
            Call::SetBound(bound) => self.set_bound(u64::from(bound % 16) + 1).await,
            Call::ReadSlowStreams => self.streams.read_slow(),
            Call::DropSlow => self.streams.drop_slow(),
        }
        self.compare_events(written);
        self.settle_jitter().await;
        self.poll_waits_for_values();
        self.compare_events(Written::None);
        self.poll_waits_for_removals();
        self.oracle.end_call();
        self.compare_loads();
        let (len, resident) = (self.cache.len(), self.oracle.len());
        assert_eq!((len, self.cache.is_empty()), (resident, resident == 0));
        assert_eq!(self.cache.weight(), self.oracle.weight());
        assert_eq!(self.cache.stats().overflow, self.streams.overflow());
    }

    async fn advance(&mut self, duration: Duration) {
        // Tokio's timers do not reach centuries into the future.
        advance(duration.min(Duration::from_secs(3_600))).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.oracle.now = time(self.start, Instant::now());
        self.accept_swept();
    }

    async fn call_sweeper(&mut self, call: SweeperCall) {
        match call {
            SweeperCall::Sweep => self.sweep().await,
            SweeperCall::Rotate => self.rotate().await,
            SweeperCall::Pause => self.cache.pause_sweeper(),
            SweeperCall::Resume => self.cache.resume_sweeper(),
            SweeperCall::Set { every, sample_percent } => {
                let every = every.duration();
                let is_manual = every.is_zero();
                let sweep = if is_manual { Sweep::manual() } else { Sweep::default().every(every) };
                let sample = f64::from(sample_percent % 100 + 1) / 100.0;
                self.cache.set_sweep(sweep.sample(sample));
                self.passes = (1.0 / sample).ceil();
            }
        }
    }

    /// Runs a manual sweep. The sweeper may be within a sweep of its own and continue it when this one yields, so the
    /// events of both are expected.
    async fn sweep(&mut self) {
        let before = self.cache.stats().expired;
        let report = self.cache.sweep().await;
        let expired = self.cache.stats().expired - before;
        assert!(report.expired <= expired, "{report:?} of {expired}");
        assert_eq!(expired, self.accept_swept());
    }

    /// Checks the bound on staleness, unless a lossless subscriber may delay the sweeper.
    async fn rotate(&mut self) {
        if self.streams.has_slow() || self.passes * self.shards as f64 > LONGEST_ROTATION {
            return;
        }
        for _ in 0..self.passes as u32 {
            self.sweep().await;
        }
        assert_eq!(self.oracle.due(), BTreeSet::new(), "a rotation examines every entry");
    }

    /// Accepts the removals of sweeps, and returns the number of expired entries.
    fn accept_swept(&mut self) -> u64 {
        let records = self.streams.received();
        records.into_iter().map(|record| u64::from(self.oracle.accept_swept(record))).sum()
    }

    /// Compares the events of a call with those of the oracle. While the call waited, the sweeper may have run.
    fn compare_events(&mut self, written: Written) {
        let mut evicted = 0;
        for record in self.streams.received() {
            if self.oracle.take_expected(record, written) {
                continue;
            }
            if self.oracle.may_be_swept(record) {
                self.oracle.accept_swept(record);
            } else {
                evicted += self.oracle.accept_evicted(record, written);
            }
        }
        assert_eq!(self.oracle.expected(), [], "events are missing");
        self.oracle.check_bound(evicted, written, self.shards <= MOST_PURGED_SHARDS);
    }

    /// Returns a TTL that jitter does not shorten to zero.
    fn ttl(&self, span: Span) -> Duration {
        jittered(span.duration(), self.oracle.settings.jitter)
    }

    /// Tells the oracle the deadlines that jitter has shortened.
    async fn settle_jitter(&mut self) {
        for key in self.oracle.unsettled() {
            let deadline = self.deadline(key).await;
            self.oracle.settle(key, deadline);
        }
    }

    async fn deadline(&self, key: Key) -> Deadline {
        match self.cache.ttl(&key).await {
            Ttl::Remaining(remaining) => Some(self.oracle.now + remaining),
            Ttl::Persistent => None,
            Ttl::Missing => panic!("{key} is missing"),
        }
    }

    pub(crate) async fn end(mut self) {
        self.rotate().await;
        self.waits = Waits::default();
        self.cache.shutdown().await;
        self.accept_swept();
        assert_eq!(self.oracle.due(), BTreeSet::new(), "a shutdown removes expired entries");
        assert_eq!(self.cache.len(), self.oracle.len());
        self.streams.end().await;
    }
}

fn build(setup: &Setup, failed_refreshes: &FailedRefreshes) -> Cache<Key, Value> {
    let settings = &setup.settings;
    let mut builder = Cache::builder()
        .sweep(setup.sweep)
        .shards(setup.shards)
        .initial_capacity(setup.initial_capacity)
        .event_capacity(setup.event_capacity)
        .publish(setup.causes.iter().copied())
        .jitter(settings.jitter)
        .stale_while_revalidate(settings.stale_while_revalidate)
        .stale_if_error(settings.stale_if_error)
        .refresh_ahead(settings.refresh_ahead)
        .on_refresh_error(failed_refreshes.hook());
    if let Some(ttl) = settings.default_ttl {
        builder = builder.time_to_live(ttl);
    }
    if let Some(idle) = settings.time_to_idle {
        builder = builder.time_to_idle(idle);
    }
    if let Some(ttl) = settings.negative_ttl {
        builder = builder.negative_ttl(ttl);
    }
    match settings.bound {
        Bound::None => builder.build(),
        Bound::Entries(bound) => builder.max_entries(bound as usize).build(),
        Bound::Weight(bound) => builder.max_weight(bound, |_, value| weigh(*value)).build(),
    }
}

/// Returns a TTL that `jitter` does not shorten to zero.
pub(crate) fn jittered(ttl: Duration, jitter: f64) -> Duration {
    if jitter == 0.0 || ttl.is_zero() { ttl } else { ttl.max(SHORTEST_JITTERED) }
}

/// Time of the oracle, for a cache that was built at `start`.
fn time(start: Instant, instant: Instant) -> Duration {
    match instant.checked_duration_since(start) {
        Some(ahead) => BUILT.saturating_add(ahead),
        None => BUILT.saturating_sub(start - instant),
    }
}

/// Maps to few keys, so that calls meet on them; some are outside of the range of [`Call::Fill`].
fn fold_key(key: u8) -> Key {
    match key {
        ..224 => Key::from(key % 8),
        _ => 2_000 + Key::from(key),
    }
}

fn fold_keys(keys: Vec<u8>) -> Vec<Key> {
    keys.into_iter().map(fold_key).collect()
}
