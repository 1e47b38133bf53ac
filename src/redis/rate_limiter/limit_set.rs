//! The limits of a limiter, in the numbers that its scripts count with; they may change while it runs.

use std::{
    mem,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{Notify, futures::Notified};

use super::protocol::LimitArgs;
use crate::rate_limit::{Limit, PerLimit, Window};

/// Limits, and the same in the numbers that scripts count with.
pub(super) struct Plan {
    pub(super) limits: Arc<[Limit]>,
    pub(super) args: PerLimit<LimitArgs>,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "the layer asks for it"))]
    has_changed: bool,
}

pub(super) struct OwnPlan {
    present: RwLock<Arc<Plan>>,
    changes: Notify,
}

impl OwnPlan {
    pub(super) fn new(limits: Vec<Limit>, window: Window) -> Self {
        let plan = Plan::new(limits, window, false);
        Self { present: RwLock::new(Arc::new(plan)), changes: Notify::new() }
    }

    pub(super) fn present(&self) -> Arc<Plan> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The limits that were set in place of the first ones.
    #[cfg(feature = "axum")]
    pub(super) fn changed(&self) -> Option<Arc<[Limit]>> {
        let plan = self.present();
        plan.has_changed.then(|| plan.limits.clone())
    }

    /// Puts others in their place, unless they are the same; tells whether it did.
    pub(super) fn replace(&self, limits: Vec<Limit>, window: Window) -> bool {
        if *self.present().limits == *limits {
            return false;
        }
        let plan = Arc::new(Plan::new(limits, window, true));
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        let old = mem::replace(&mut *present, plan);
        drop(present);
        drop(old);
        true
    }

    /// Wakes who waits for a change.
    pub(super) fn tell(&self) {
        self.changes.notify_waiters();
    }

    /// The next change; from the time on at which it is first polled or enabled.
    pub(super) fn change(&self) -> Notified<'_> {
        self.changes.notified()
    }
}

impl Plan {
    fn new(limits: Vec<Limit>, window: Window, has_changed: bool) -> Self {
        let args = limits.iter().map(|limit| LimitArgs::new(limit, window)).collect();
        Self { limits: limits.into(), args, has_changed }
    }
}
