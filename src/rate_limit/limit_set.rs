//! `LimitSet`, limits with the parameters of their algorithm; and `CurrentLimits`, those of a limiter, which may change
//! while it runs.

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
    /// Parameters of the limits, by position.
    pub(super) params: PerLimit<LimitParams>,
    /// Smallest quota: a higher cost never passes. 0 if there are no limits.
    pub(super) least_quota: u32,
}

pub(super) struct CurrentLimits {
    first: LimitSet,
    /// Replacement of `first`. Created by the first change, so that the checks of a limiter whose limits never change
    /// take no lock.
    changed: OnceLock<RwLock<Arc<LimitSet>>>,
    /// Number of changes.
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

    /// Returns the first limits, unless they were replaced.
    #[inline]
    pub(super) fn unchanged(&self) -> Option<&LimitSet> {
        if self.changed.get().is_some() { None } else { Some(&self.first) }
    }

    /// Returns the limits that replaced the first ones, if any.
    pub(super) fn changed(&self) -> Option<Arc<LimitSet>> {
        let changed = self.changed.get()?;
        Some(changed.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(super) fn limits(&self) -> Arc<[Limit]> {
        self.changed()
            .map_or_else(|| self.first.limits.clone(), |limit_set| limit_set.limits.clone())
    }

    /// Replaces the limits; returns the parameters of the previous ones.
    pub(super) fn replace(&self, limit_set: Arc<LimitSet>) -> PerLimit<LimitParams> {
        // Only the caller that makes the first change runs the closure. All others find the lock and replace its
        // content.
        let mut old = None;
        let changed = self.changed.get_or_init(|| {
            old = Some(self.first.params.clone());
            RwLock::new(limit_set.clone())
        });
        old.unwrap_or_else(|| {
            let mut present = changed.write().unwrap_or_else(PoisonError::into_inner);
            let old = mem::replace(&mut *present, limit_set);
            // Before the clone, so that checks, which take this lock for reading, do not wait for it.
            drop(present);
            old.params.clone()
        })
    }

    /// Wakes the waiters for a change.
    pub(super) fn notify_change(&self) {
        // The version first: a waiter registers and then reads it. `SeqCst` here and in `version` orders the two pairs,
        // so a waiter that reads the old version is registered before `notify_waiters` runs.
        self.version.fetch_add(1, SeqCst);
        self.changes.notify_waiters();
    }

    /// Returns the number of changes. Two reads of it, before and after a decision, cost less than a registration.
    pub(super) fn version(&self) -> u64 {
        // See `notify_change`.
        self.version.load(SeqCst)
    }

    /// Returns a future of the next change after it is first polled or enabled.
    pub(super) fn change(&self) -> Notified<'_> {
        self.changes.notified()
    }
}

pub(super) fn params_of(limits: &[Limit], window: Window) -> PerLimit<LimitParams> {
    limits.iter().map(|limit| LimitParams::new(limit, window)).collect()
}

/// Returns the smallest quota; 0 if there are no limits, since nothing is counted then.
pub(super) fn least_quota(limits: &[Limit]) -> u32 {
    limits.iter().map(Limit::quota).min().unwrap_or(0)
}
