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
    /// True if they replaced the limits of the builder.
    has_changed: bool,
}

pub(super) struct CurrentLimits {
    of_builder: Vec<Limit>,
    current: RwLock<Arc<LimitSet>>,
    changes: Notify,
}

impl CurrentLimits {
    pub(super) fn new(limits: Vec<Limit>, window: Window) -> Self {
        let of_builder = limits.clone();
        let limit_set = LimitSet::new(limits, window, false);
        Self { of_builder, current: RwLock::new(Arc::new(limit_set)), changes: Notify::new() }
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

    /// Returns whether these stored limits are the current ones; `None` stands for those of the builder.
    pub(super) fn is_stored(&self, stored: Option<&[Limit]>) -> bool {
        let current = self.get();
        match stored {
            Some(limits) => *current.limits == *limits,
            None => !current.has_changed,
        }
    }

    /// Replaces the limits, or restores those of the builder if `stored` is `None`. Returns `false` if they are equal to
    /// the current ones.
    ///
    /// The set is another `Arc` in any case: a poll that began before it must not replace it.
    pub(super) fn replace(&self, stored: Option<Vec<Limit>>, window: Window) -> bool {
        let has_changed = stored.is_some();
        let limits = stored.unwrap_or_else(|| self.of_builder.clone());
        let is_change = *self.get().limits != *limits;
        let limit_set = Arc::new(LimitSet::new(limits, window, has_changed));
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = mem::replace(&mut *current, limit_set);
        drop(current);
        // After unlock, as every deallocation.
        drop(old);
        is_change
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
