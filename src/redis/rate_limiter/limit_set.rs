//! Current limits of a limiter, which may change while it runs.

use std::{
    mem,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{Notify, futures::Notified};

use super::protocol::LimitArgs;
use crate::rate_limit::{Limit, PerLimit, Window};

/// Limits, together with their arguments for the scripts.
pub(super) struct LimitSet {
    pub(super) limits: Arc<[Limit]>,
    pub(super) args: PerLimit<LimitArgs>,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "used by the layer"))]
    /// True if they replaced the limits of the builder.
    has_changed: bool,
}

pub(super) struct CurrentLimits {
    current: RwLock<Arc<LimitSet>>,
    changes: Notify,
}

impl CurrentLimits {
    pub(super) fn new(limits: Vec<Limit>, window: Window) -> Self {
        let limit_set = LimitSet::new(limits, window, false);
        Self { current: RwLock::new(Arc::new(limit_set)), changes: Notify::new() }
    }

    pub(super) fn get(&self) -> Arc<LimitSet> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the limits if they replaced those of the builder.
    #[cfg(feature = "axum")]
    pub(super) fn changed(&self) -> Option<Arc<[Limit]>> {
        let current = self.get();
        current.has_changed.then(|| current.limits.clone())
    }

    /// Replaces the limits; returns `false` if `limits` are equal to the current ones.
    pub(super) fn replace(&self, limits: Vec<Limit>, window: Window) -> bool {
        // Most polls find the same limits, which must neither wake waiters nor invalidate cached denials.
        if *self.get().limits == *limits {
            return false;
        }
        let limit_set = Arc::new(LimitSet::new(limits, window, true));
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = mem::replace(&mut *current, limit_set);
        drop(current);
        // After unlock, as every deallocation.
        drop(old);
        true
    }

    /// Wakes the tasks that wait for a change.
    pub(super) fn notify_change(&self) {
        self.changes.notify_waiters();
    }

    /// Returns a future that resolves at the next change after it was first polled or enabled.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.changes.notified()
    }
}

impl LimitSet {
    fn new(limits: Vec<Limit>, window: Window, has_changed: bool) -> Self {
        let args = limits.iter().map(|limit| LimitArgs::new(limit, window)).collect();
        Self { limits: limits.into(), args, has_changed }
    }
}
