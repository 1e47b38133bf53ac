//! Meter of a response body: settles the request's charge by the bytes sent, when the body ends or the client
//! disconnects.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::runtime::Handle;

use super::limiter::LayerPermit;

/// Bytes of a response body so far. Dropping it settles the charge.
pub(super) struct BodyMeter {
    /// Taken when it is settled.
    permit: Option<LayerPermit>,
    bytes: u64,
    cost: SentCostFn,
    /// Minimum cost.
    least: u32,
    /// Runtime of the request. The body may be dropped on a thread without one.
    runtime: Option<Handle>,
}

pub(super) type SentCostFn = Arc<dyn Fn(u64) -> u32 + Send + Sync>;

impl BodyMeter {
    pub(super) fn new(permit: LayerPermit, cost: SentCostFn, least: u32) -> Self {
        Self { permit: Some(permit), bytes: 0, cost, least, runtime: Handle::try_current().ok() }
    }

    /// Counts further bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

impl Drop for BodyMeter {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        // The function is the user's, and a body may be dropped during a panic: a second panic would abort the process.
        match catch_unwind(AssertUnwindSafe(|| (self.cost)(self.bytes))) {
            Ok(actual) => permit.settle_soon(actual.max(self.least), &self.runtime),
            Err(_) => {
                tracing::error!("charge_sent panicked, the request keeps its initial charge")
            }
        }
    }
}
