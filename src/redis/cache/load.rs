//! One run of a loader: it writes the loaded value, or records the failure, and answers the caller and the waiters,
//! also if the value could not be written.

use std::{fmt::Debug, sync::Arc};

use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::{
    super::{Error, Format},
    expiry::{EncodedFreshness, Expiry},
    failures::BegunLoad,
    flights::FlightMembership,
    lease::Lease,
    stats::Counters,
    stored_value::stored,
};
use crate::{
    cache::{REFRESH_TIMEOUT, TimeToLive},
    engine::panics,
};

/// A load that is about to begin. It holds no cache state, so that a refresh does not keep the cache's streams open.
pub(super) struct Load {
    /// Name of the cache, for log messages.
    pub(super) name: String,
    pub(super) key: Vec<u8>,
    pub(super) guard: FlightMembership,
    /// Lease on the key, or the error if the memory of the server is full.
    pub(super) lease: Result<Lease, Error>,
    pub(super) format: Format,
    pub(super) counters: Arc<Counters>,
    pub(super) freshness: Arc<EncodedFreshness>,
    /// Present if failures are kept.
    pub(super) begun: Option<BegunLoad>,
    /// True if no caller waits for this load itself.
    pub(super) is_refresh: bool,
}

impl Load {
    /// Calls the loader and writes the value that it returns.
    pub(super) async fn run<V, E, F, Fut>(
        self,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        V: Serialize,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let Self { name, mut guard, lease, format, counters, freshness, begun, is_refresh, .. } =
            self;
        counters.load();
        let started = Instant::now();
        // The call of the closure is inside `run`, too: the loader may do its work before it returns its future.
        let load = guard.run(async move { loader().await });
        let loaded = match &lease {
            Ok(lease) => lease.renew_during(load).await,
            Err(_) => load.await,
        };
        freshness.loads.record(started.elapsed(), loaded.is_err());
        let value = match loaded {
            Ok(value) => value,
            Err(error) => {
                counters.failed_load();
                let error = Arc::new(error);
                if let Some(begun) = &begun {
                    begun.record_failure(Some(error.clone()));
                }
                match is_refresh {
                    // A caller that waits loads with its own loader, as after a refresh of the embedded cache.
                    true => guard.finish_with_retry(),
                    false => guard.finish(Err(error.clone())),
                }
                return Ok(Err(error));
            }
        };
        let bytes = match format.encode(&value).map(stored) {
            Ok(bytes) => bytes,
            Err(error) => {
                counters.failed_load();
                guard.finish_with_error(&error);
                return Err(error);
            }
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(error) => {
                counters.failed_load();
                log_unwritten(&name, &error);
                // For callers that joined before the load began; callers that joined later may have seen a newer write.
                guard.finish(Ok(bytes));
                return Ok(Ok(value));
            }
        };
        // Callers that join from now on may have seen a later write, so they do not get this value.
        guard.begin_read();
        let (ttl, tags) = ttl.with_tags(&value);
        let expiry = Expiry::of_written(&freshness, ttl);
        match lease.publish(&bytes, expiry, tags.as_deref()).await {
            Ok(true) => guard.finish(Ok(bytes)),
            Ok(false) => guard.finish_superseded(bytes),
            Err(error) => {
                counters.failed_load();
                log_unwritten(&name, &error);
                guard.finish_with_retry();
            }
        }
        if let Some(begun) = &begun {
            begun.record_success();
        }
        Ok(Ok(value))
    }

    /// Runs the load as a task that no caller waits for, and reports its failure.
    pub(super) async fn run_refresh<V, E, F, Fut>(self, ttl: impl TimeToLive<V>, loader: F)
    where
        V: Serialize,
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let (name, key, counters) = (self.name.clone(), self.key.clone(), self.counters.clone());
        let begun = self.begun.clone();
        // The load owns the policy while it runs: afterwards, only handles of the cache do.
        let freshness = Arc::downgrade(&self.freshness);
        let loaded = panics::caught(timeout(REFRESH_TIMEOUT, self.run(ttl, loader))).await;
        if !matches!(loaded, Ok(Ok(_))) {
            counters.failed_load();
            if let Some(begun) = &begun {
                begun.record_failure(None);
            }
        }
        let report = |error: &dyn Debug| {
            // The last handle of the cache may have been dropped in the meantime.
            if let Some(freshness) = freshness.upgrade() {
                freshness.report_failed_refresh(&name, &key, error);
            }
        };
        match loaded {
            Ok(Ok(Ok(Ok(_)))) => {}
            Ok(Ok(Ok(Err(error)))) => report(&*error),
            Ok(Ok(Err(error))) => report(&error),
            Ok(Err(_)) => report(&format_args!(
                "timed out after {REFRESH_TIMEOUT:?}, the timeout of background refreshes"
            )),
            Err(panic) => report(&format_args!("panicked: {}", panics::message(&*panic))),
        }
    }
}

fn log_unwritten(cache: &str, error: &Error) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(cache, error, "failed to write a loaded value");
}
