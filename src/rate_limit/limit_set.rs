//! `LimitSet`, limits with the parameters of their algorithm; and `CurrentLimits`, those of a limiter, with the sets
//! that they have replaced.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::sync::{Notify, futures::Notified};

use super::{Limit, Window, algorithm::LimitParams, per_limit::PerLimit};

/// Largest number of a limit set, which fits into a permit.
pub(super) const MAX_NUMBER: u32 = (1 << 20) - 1;

/// Number of replaced limit sets that are kept. A permit from before the last of them gives nothing back, except with
/// [`Window::Log`].
const MAX_REPLACED: usize = 64;

pub(super) struct LimitSet {
    /// Number of changes before these limits. A permit has it, not the limits.
    pub(super) number: u32,
    pub(super) limits: Arc<[Limit]>,
    /// Parameters of the limits, by position.
    pub(super) params: PerLimit<LimitParams>,
    /// Smallest quota: a higher cost never passes. 0 if there are no limits.
    pub(super) least_quota: u32,
}

/// Limits of one call: those that were given for it, or the limiter's own.
#[derive(Clone, Copy)]
pub(super) struct CallLimits<'a> {
    pub(super) limits: &'a [Limit],
    pub(super) params: &'a [LimitParams],
    pub(super) least_quota: u32,
    /// Number of the limiter's own limits; of no meaning for others.
    pub(super) number: u32,
}

pub(super) struct CurrentLimits {
    first: LimitSet,
    /// Replacement of `first`. Created by the first change, so that the checks of a limiter whose limits never change
    /// take no lock.
    changed: OnceLock<RwLock<Changed>>,
    /// Number of changes.
    version: AtomicU64,
    changes: Notify,
}

struct Changed {
    current: Arc<LimitSet>,
    /// The last sets that were replaced, except for the first.
    replaced: VecDeque<Arc<LimitSet>>,
}

impl LimitSet {
    pub(super) fn new(limits: Arc<[Limit]>, window: Window) -> Self {
        let params = params_of(&limits, window);
        Self { number: 0, params, least_quota: least_quota(&limits), limits }
    }

    #[inline]
    pub(super) fn as_call_limits(&self) -> CallLimits<'_> {
        let Self { number, limits, params, least_quota } = self;
        CallLimits { limits, params, least_quota: *least_quota, number: *number }
    }
}

impl CallLimits<'_> {
    /// Returns `true` if a cost can never pass.
    pub(super) fn is_above(&self, cost: u32) -> bool {
        cost > self.least_quota && !self.limits.is_empty()
    }

    /// Returns `true` if a call passes whatever is in use, or can never pass.
    #[inline]
    pub(super) fn decides(&self, cost: u32) -> bool {
        // Without limits, the least quota is 0.
        cost == 0 || cost > self.least_quota
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
        Some(changed.read().unwrap_or_else(PoisonError::into_inner).current.clone())
    }

    /// Calls `f` with the parameters of the limits that applied after that number of changes; with none if they are not
    /// known any more.
    pub(super) fn with_replaced<R>(&self, number: u32, f: impl FnOnce(&[LimitParams]) -> R) -> R {
        if number == 0 {
            return f(&self.first.params);
        }
        if number == MAX_NUMBER {
            return f(&[]);
        }
        let found = self.changed.get().and_then(|changed| {
            let changed = changed.read().unwrap_or_else(PoisonError::into_inner);
            let mut sets = changed.replaced.iter().rev();
            let is_it = |set: &&Arc<LimitSet>| set.number == number;
            // Most permits are from the current limits, or those before.
            Some(&changed.current).filter(is_it).or_else(|| sets.find(is_it)).cloned()
        });
        f(found.as_ref().map_or(&[], |set| &set.params))
    }

    pub(super) fn limits(&self) -> Arc<[Limit]> {
        self.changed()
            .map_or_else(|| self.first.limits.clone(), |limit_set| limit_set.limits.clone())
    }

    /// Replaces the limits; returns the parameters of the previous ones.
    pub(super) fn replace(&self, mut limit_set: LimitSet) -> PerLimit<LimitParams> {
        limit_set.number = 1;
        let mut limit_set = Some(limit_set);
        // Only the caller that makes the first change runs the closure. All others find the lock and replace its
        // content.
        let changed = self.changed.get_or_init(|| {
            let current = Arc::new(limit_set.take().expect("it is taken once"));
            RwLock::new(Changed { current, replaced: VecDeque::new() })
        });
        let Some(mut limit_set) = limit_set else { return self.first.params.clone() };
        let mut changed = changed.write().unwrap_or_else(PoisonError::into_inner);
        // Saturates, so that a number is not used again: the permits of all further sets are then those of one.
        limit_set.number = changed.current.number.saturating_add(1).min(MAX_NUMBER);
        let Changed { current, replaced } = &mut *changed;
        let old = mem::replace(current, Arc::new(limit_set));
        replaced.push_back(old.clone());
        let forgotten = if replaced.len() > MAX_REPLACED { replaced.pop_front() } else { None };
        drop(changed);
        // Their names are dropped without the lock, which checks take for reading.
        drop(forgotten);
        old.params.clone()
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
