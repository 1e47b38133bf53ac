//! Failed loads of this process by encoded key, and the writes of this process that take precedence over them.

use std::{hash::BuildHasher, sync::Arc, time::Duration};

use crate::engine::{
    clock::Clock,
    failed_loads::{DEFAULT_MAX, FailedLoads},
    hasher::DefaultHasher,
    store::Failure,
};

pub(super) struct Failures {
    hasher: DefaultHasher,
    failed_loads: FailedLoads,
}

/// A load that has begun, and the writes by this process before it: to its key, and to others of the same stripe. A
/// write to one key may thus discard the error of another's load in flight.
#[derive(Clone)]
pub(super) struct BegunLoad {
    failures: Arc<Failures>,
    hash: u64,
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
        Self { hasher: DefaultHasher::default(), failed_loads }
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
        let hash = self.hash(key);
        BegunLoad { failures: self.clone(), hash, writes_before: self.failed_loads.writes(hash) }
    }

    /// Returns a guard that discards the failures of `keys` when it is dropped.
    pub(super) fn discard_on_drop<'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> DiscardOnDrop<'a> {
        DiscardOnDrop { failures: self, keys: keys.into_iter().collect() }
    }

    pub(super) async fn discard_all(&self) {
        self.failed_loads.discard_all().await;
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }
}

impl BegunLoad {
    /// Records the failure of the load, unless this process has written the key since the load began.
    pub(super) fn record_failure(&self, key: &[u8], error: Option<Failure>) {
        let failed_loads = &self.failures.failed_loads;
        let is_superseded = || failed_loads.writes(self.hash) != self.writes_before;
        failed_loads.record(self.hash, key.to_vec(), error, &is_superseded);
    }

    /// Ends the row of failures of the key: its load has succeeded.
    pub(super) fn record_success(&self) {
        self.failures.failed_loads.discard_after_write(self.hash);
    }
}

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            self.failures.failed_loads.discard_after_write(self.failures.hash(key));
        }
    }
}
