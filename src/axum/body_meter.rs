//! What a body has cost when it has ended: to its end or, where the client hung up, as far as it went.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::runtime::Handle;

use super::limiter::LayerPermit;

/// Charged when this is dropped.
pub(super) struct BodyMeter {
    /// `None` once it is settled.
    permit: Option<LayerPermit>,
    bytes: u64,
    cost: SentCostFn,
    /// Of the request. Whatever thread drops the body may be of none.
    runtime: Option<Handle>,
}

pub(super) type SentCostFn = Arc<dyn Fn(u64) -> u32 + Send + Sync>;

impl BodyMeter {
    pub(super) fn new(permit: LayerPermit, cost: SentCostFn) -> Self {
        Self { permit: Some(permit), bytes: 0, cost, runtime: Handle::try_current().ok() }
    }

    /// So many bytes more.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

impl Drop for BodyMeter {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        // Somebody's code, and a body may be dropped while its thread panics: a second panic would end the process.
        match catch_unwind(AssertUnwindSafe(|| (self.cost)(self.bytes))) {
            Ok(actual) => permit.settle_soon(actual, &self.runtime),
            Err(_) => {
                tracing::error!("a panic in `charge_sent`: the request stays charged as it was")
            }
        }
    }
}
