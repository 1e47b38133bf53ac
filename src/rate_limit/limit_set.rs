//! Limits with the numbers that a window counts with; and those of a limiter, which may change while it runs.

use std::{
    mem,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::sync::{Notify, futures::Notified};

use super::{Limit, Window, algorithm::LimitParams, per_limit::PerLimit};

pub(super) struct LimitSet {
    pub(super) limits: Arc<[Limit]>,
    /// The limits as the window counts them.
    pub(super) params: PerLimit<LimitParams>,
    /// What costs more never passes. 0 where there are no limits.
    pub(super) least_quota: u32,
}

pub(super) struct CurrentLimits {
    first: LimitSet,
    /// What took its place. A lock that a limiter whose limits never change has not, as each check would take it.
    changed: OnceLock<RwLock<Arc<LimitSet>>>,
    /// How often they changed.
    version: AtomicU64,
    changes: Notify,
}

impl LimitSet {
    pub(super) fn new(limits: Arc<[Limit]>, window: Window) -> Self {
        let params = params_of(&limits, window);
        Self { params, least_quota: least_quota(&limits), limits }
    }
}

impl CurrentLimits {
    pub(super) fn new(first: LimitSet) -> Self {
        let version = AtomicU64::new(0);
        Self { first, changed: OnceLock::new(), version, changes: Notify::new() }
    }

    /// The first plan, if it still holds.
    #[inline]
    pub(super) fn unchanged(&self) -> Option<&LimitSet> {
        if self.changed.get().is_some() { None } else { Some(&self.first) }
    }

    /// The plan that took the place of the first one.
    pub(super) fn changed(&self) -> Option<Arc<LimitSet>> {
        let changed = self.changed.get()?;
        Some(changed.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(super) fn limits(&self) -> Arc<[Limit]> {
        self.changed()
            .map_or_else(|| self.first.limits.clone(), |limit_set| limit_set.limits.clone())
    }

    /// Puts `limit_set` in the place of the present one; returns the rules of that.
    pub(super) fn replace(&self, limit_set: Arc<LimitSet>) -> PerLimit<LimitParams> {
        let mut old = None;
        let changed = self.changed.get_or_init(|| {
            old = Some(self.first.params.clone());
            RwLock::new(limit_set.clone())
        });
        old.unwrap_or_else(|| {
            let mut present = changed.write().unwrap_or_else(PoisonError::into_inner);
            let old = mem::replace(&mut *present, limit_set);
            drop(present);
            old.params.clone()
        })
    }

    /// Wakes who waits for a change.
    pub(super) fn tell(&self) {
        // First, so that who listens too late to be woken sees it.
        self.version.fetch_add(1, SeqCst);
        self.changes.notify_waiters();
    }

    /// How often the limits changed. To listen costs more than to look at this once before and once after.
    pub(super) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// The next change; from the time on at which it is first polled or enabled.
    pub(super) fn change(&self) -> Notified<'_> {
        self.changes.notified()
    }
}

pub(super) fn params_of(limits: &[Limit], window: Window) -> PerLimit<LimitParams> {
    limits.iter().map(|limit| LimitParams::new(limit, window)).collect()
}

/// 0 where there are no limits: then nothing is counted.
pub(super) fn least_quota(limits: &[Limit]) -> u32 {
    limits.iter().map(Limit::quota).min().unwrap_or(0)
}
