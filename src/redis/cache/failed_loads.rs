//! Failed loads of this process: errors kept by `negative_ttl`, and the backoff of refreshes ahead.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cache::refresh_backoff,
    engine::{hasher::DefaultHasher, store::Failure},
};

/// Maximum number of keys with a failed load. An arbitrary one is dropped for each further one.
const MAX_FAILURES: usize = 10_000;

/// Number of failed loads from which on ended ones are removed.
const MIN_PURGE: usize = 64;

/// Number of write counters, which keys share. A write to one key may discard the error of another's load in flight.
const STRIPES: usize = 64;

pub(super) struct FailedLoads {
    negative_ttl: Option<Duration>,
    hasher: DefaultHasher,
    state: Mutex<State>,
}

struct State {
    by_key: HashMap<Box<[u8]>, Failed, DefaultHasher>,
    /// Number of writes by this process to the keys of each stripe.
    writes: [u64; STRIPES],
    /// Number of failed loads at which ended ones are removed: twice the number that was left the last time.
    purge_at: usize,
}

struct Failed {
    /// `None` for a panic, a timeout, and if errors are not kept.
    error: Option<Failure>,
    error_until: Instant,
    /// Number of failures in a row.
    consecutive: u32,
    retry_at: Instant,
    /// Time until which the next failure counts as one in a row.
    until: Instant,
}

/// Number of writes to a key, and to others of its stripe, before a load.
#[derive(Clone, Copy)]
pub(super) struct WritesBefore(u64);

/// Discards the failures of keys when dropped: after a write, or when its call was dropped, since the server may have
/// executed it.
pub(super) struct DiscardOnDrop<'a> {
    failures: &'a FailedLoads,
    keys: Vec<&'a [u8]>,
}

impl FailedLoads {
    pub(super) fn new(negative_ttl: Option<Duration>) -> Self {
        let hasher = DefaultHasher::default();
        let by_key = HashMap::with_hasher(hasher.clone());
        let state = State { by_key, writes: [0; STRIPES], purge_at: MIN_PURGE };
        Self { negative_ttl, hasher, state: Mutex::new(state) }
    }

    /// Returns the kept error of a key, if it has the type `E`.
    pub(super) fn error<E: Send + Sync + 'static>(&self, key: &[u8]) -> Option<Arc<E>> {
        let state = self.lock();
        let failed = state.by_key.get(key).filter(|failed| Instant::now() < failed.error_until);
        let error = failed.and_then(|failed| failed.error.clone());
        drop(state);
        // A loader with another type of error cannot return it, and loads again.
        error?.downcast().ok()
    }

    /// Returns whether a refresh of a key may be started: none has failed recently, or the backoff has ended.
    pub(super) fn may_retry(&self, key: &[u8]) -> bool {
        self.lock().by_key.get(key).is_none_or(|failed| Instant::now() >= failed.retry_at)
    }

    pub(super) fn begin_load(&self, key: &[u8]) -> WritesBefore {
        WritesBefore(self.lock().writes[self.stripe(key)])
    }

    /// Records a failed load, unless this process has written the key since the load began.
    pub(super) fn record(&self, key: &[u8], before: WritesBefore, error: Option<Failure>) {
        let now = Instant::now();
        let stripe = self.stripe(key);
        let mut state = self.lock();
        if state.writes[stripe] != before.0 {
            return;
        }
        let purged = state.purge(now);
        let former = state.by_key.remove(key);
        let in_a_row = former.as_ref().filter(|former| now < former.until);
        let consecutive = in_a_row.map_or(0, |former| former.consecutive);
        let (backoff, negative_ttl) =
            (refresh_backoff(consecutive), self.negative_ttl.unwrap_or_default());
        // A time that overflows is of no use: a century is forever.
        let after = |time: Duration| now + time.min(Duration::from_secs(3_200_000_000));
        let failed = Failed {
            error: error.filter(|_| self.negative_ttl.is_some()),
            error_until: after(negative_ttl),
            consecutive: consecutive.saturating_add(1),
            retry_at: after(backoff),
            // At least twice the backoff, so that the next failure in a row finds this one and doubles it.
            until: after(negative_ttl.max(2 * backoff)),
        };
        state.by_key.insert(key.into(), failed);
        drop(state);
        // After unlock: errors have a `Drop` of the user.
        drop((purged, former));
    }

    /// Returns a guard that discards the failures of `keys` when it is dropped.
    pub(super) fn discard_on_drop<'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> DiscardOnDrop<'a> {
        DiscardOnDrop { failures: self, keys: keys.into_iter().collect() }
    }

    pub(super) fn discard_all(&self) {
        let mut state = self.lock();
        state.writes.iter_mut().for_each(|writes| *writes += 1);
        let discarded =
            std::mem::replace(&mut state.by_key, HashMap::with_hasher(self.hasher.clone()));
        drop(state);
        drop(discarded);
    }

    fn discard(&self, key: &[u8]) {
        let stripe = self.stripe(key);
        let mut state = self.lock();
        state.writes[stripe] += 1;
        let discarded = state.by_key.remove(key);
        drop(state);
        drop(discarded);
    }

    fn stripe(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize % STRIPES
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no user code runs under this lock")
    }
}

impl State {
    /// Removes ended failures if there are many, and returns them.
    fn purge(&mut self, now: Instant) -> Vec<(Box<[u8]>, Failed)> {
        if self.by_key.len() < self.purge_at {
            return Vec::new();
        }
        let mut purged: Vec<_> = self.by_key.extract_if(|_, failed| now >= failed.until).collect();
        if self.by_key.len() >= MAX_FAILURES {
            let any = self.by_key.keys().next().cloned();
            purged.extend(any.and_then(|key| self.by_key.remove_entry(&key)));
        }
        self.purge_at = (2 * self.by_key.len()).clamp(MIN_PURGE, MAX_FAILURES);
        purged
    }
}

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.failures.discard(key));
    }
}
