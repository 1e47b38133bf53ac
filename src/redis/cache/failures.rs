//! Failed loads of this process by encoded key, and the writes of this process that take precedence over them.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::engine::{
    clock::Clock,
    failed_loads::{DEFAULT_MAX, FailedLoads},
    hasher::DefaultHasher,
    store::LoadFailure,
};

pub(super) struct Failures {
    hasher: DefaultHasher,
    failed_loads: FailedLoads,
    /// Loads that have begun and not ended, by key.
    in_flight: Mutex<HashMap<Vec<u8>, InFlight, DefaultHasher>>,
}

/// Loads of one key: usually one, and a further one while the first has delivered its result and has not ended.
#[derive(Default)]
struct InFlight {
    loads: usize,
    /// Number of writes by this process since the first of these loads began.
    writes: u64,
}

/// A load that has begun, until the last clone is dropped.
#[derive(Clone)]
pub(super) struct BegunLoad(Arc<Begun>);

struct Begun {
    failures: Arc<Failures>,
    key: Vec<u8>,
    /// Number of writes of the key before the load began.
    writes_before: u64,
}

/// Discards the failures of keys when dropped: after a write, or when its call was dropped, since the server may have
/// executed it.
pub(super) struct DiscardOnDrop<'a> {
    failures: &'a Failures,
    keys: Vec<&'a [u8]>,
}

impl Failures {
    pub(super) fn new(negative_ttl: Option<Duration>) -> Self {
        let failed_loads = FailedLoads::new(Clock::new(), negative_ttl, DEFAULT_MAX);
        Self { hasher: DefaultHasher::default(), failed_loads, in_flight: Mutex::default() }
    }

    /// Returns the kept error of a key, if it has the type `E`.
    pub(super) fn error<E: Send + Sync + 'static>(&self, key: &[u8]) -> Option<Arc<E>> {
        self.failed_loads.error::<Vec<u8>, _, _>(self.hash(key), key)
    }

    /// Returns whether a refresh of a key may be started: none has failed recently, or the backoff has ended.
    pub(super) fn may_retry(&self, key: &[u8]) -> bool {
        self.failed_loads.may_retry::<Vec<u8>, _>(self.hash(key), key)
    }

    pub(super) fn begin_load(self: &Arc<Self>, key: &[u8]) -> BegunLoad {
        let key = key.to_vec();
        let mut in_flight = self.in_flight();
        let of_key = in_flight.entry(key.clone()).or_default();
        of_key.loads += 1;
        let writes_before = of_key.writes;
        drop(in_flight);
        BegunLoad(Arc::new(Begun { failures: self.clone(), key, writes_before }))
    }

    /// Returns a guard that discards the failures of `keys` when it is dropped.
    pub(super) fn discard_on_drop<'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> DiscardOnDrop<'a> {
        DiscardOnDrop { failures: self, keys: keys.into_iter().collect() }
    }

    pub(super) async fn discard_all(&self) {
        self.in_flight().values_mut().for_each(InFlight::count_write);
        self.failed_loads.discard_all().await;
    }

    /// Discards the failure of a key that was written, also that of a load in flight.
    fn discard(&self, key: &[u8]) {
        // Counted first: see `FailedLoads::record`, which compares the number under the same lock.
        if let Some(of_key) = self.in_flight().get_mut(key) {
            of_key.count_write();
        }
        self.failed_loads.discard(self.hash(key));
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<Vec<u8>, InFlight, DefaultHasher>> {
        self.in_flight.lock().expect("nothing panics under this lock")
    }
}

impl InFlight {
    fn count_write(&mut self) {
        self.writes += 1;
    }
}

impl BegunLoad {
    /// Records the failure of the load, unless this process has written the key since the load began.
    pub(super) fn record_failure(&self, error: Option<LoadFailure>) {
        let Begun { failures, key, writes_before } = &*self.0;
        let is_superseded =
            || failures.in_flight().get(key).is_some_and(|it| it.writes != *writes_before);
        failures.failed_loads.record(failures.hash(key), key.clone(), error, &is_superseded);
    }

    /// Ends the row of failures of the key: its load has succeeded.
    pub(super) fn record_success(&self) {
        self.0.failures.discard(&self.0.key);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut in_flight = self.failures.in_flight();
        let Some(of_key) = in_flight.get_mut(&self.key) else { return };
        of_key.loads -= 1;
        let ended = if of_key.loads == 0 { in_flight.remove_entry(&self.key) } else { None };
        drop(in_flight);
        // The key is freed after unlock.
        drop(ended);
    }
}

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            self.failures.discard(key);
        }
    }
}
