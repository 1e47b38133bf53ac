//! Current limits of a limiter, which may change while it runs.

use std::{
    mem,
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{Notify, futures::Notified};

use super::protocol::LimitArgs;
use crate::rate_limit::{Limit, PerLimit, Window};

/// Limits, together with their arguments for the scripts.
pub(super) struct LimitSet {
    pub(super) limits: Arc<[Limit]>,
    pub(super) args: PerLimit<LimitArgs>,
    /// Maximum time for which units may be reserved.
    pub(super) max_reserve_for: Duration,
    /// True if they replaced the limits of the builder.
    has_changed: bool,
    /// True after others have become the current limits.
    is_replaced: AtomicBool,
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

    /// Replaces the limits, or restores those of the builder if `stored` is `None`. Returns `false` if they are equal
    /// to the current ones.
    ///
    /// The set is another `Arc` in any case: the result of a poll that began before it is out of date.
    pub(super) fn replace(&self, stored: Option<Vec<Limit>>, window: Window) -> bool {
        let limit_set = Arc::new(self.limit_set_of(stored, window));
        let old = make_current(&mut self.current_mut(), limit_set.clone());
        old.limits != limit_set.limits
    }

    /// Replaces the limits by the result of a poll, unless they were replaced since the poll began with `before`.
    /// Returns whether they have changed.
    pub(super) fn apply_poll(
        &self,
        stored: Option<Vec<Limit>>,
        window: Window,
        before: &Arc<LimitSet>,
    ) -> bool {
        let is_stored = match &stored {
            Some(limits) => *before.limits == **limits,
            None => !before.has_changed,
        };
        if is_stored {
            return false;
        }
        let limit_set = Arc::new(self.limit_set_of(stored, window));
        // Under one lock: otherwise limits that are set after the comparison would be lost.
        let mut current = self.current_mut();
        let is_current = Arc::ptr_eq(&current, before);
        let old = is_current.then(|| make_current(&mut current, limit_set));
        drop(current);
        old.is_some()
    }

    fn limit_set_of(&self, stored: Option<Vec<Limit>>, window: Window) -> LimitSet {
        let has_changed = stored.is_some();
        LimitSet::new(stored.unwrap_or_else(|| self.of_builder.clone()), window, has_changed)
    }

    fn current_mut(&self) -> RwLockWriteGuard<'_, Arc<LimitSet>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
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
        let max_reserve_for = max_reserve_for(&limits);
        let is_replaced = false.into();
        Self { limits: limits.into(), args, max_reserve_for, has_changed, is_replaced }
    }

    /// Returns whether they are still the current limits, without the lock.
    pub(super) fn is_current(&self) -> bool {
        // `Relaxed`: a caller that has seen other limits, or the end of the call that set them, sees the flag as well.
        !self.is_replaced.load(Relaxed)
    }
}

/// Replaces the current limits, which the caller has locked, and returns the old ones.
fn make_current(current: &mut Arc<LimitSet>, limit_set: Arc<LimitSet>) -> Arc<LimitSet> {
    current.is_replaced.store(true, Relaxed);
    mem::replace(current, limit_set)
}

/// Returns a tenth of the shortest time of a limit.
pub(super) fn max_reserve_for(limits: &[Limit]) -> Duration {
    limits.iter().map(Limit::per).min().unwrap_or_default() / 10
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn limits_are_current_until_others_replace_them() {
        let of_builder = vec![Limit::per_hour(10)];
        let current = CurrentLimits::new(of_builder.clone(), Window::Gcra);
        let first = current.get();
        current.replace(Some(of_builder), Window::Gcra);
        let set = current.get();
        assert!(!first.is_current() && set.is_current(), "also by equal ones");
        assert!(!current.apply_poll(None, Window::Gcra, &first) && set.is_current());
        assert!(current.apply_poll(None, Window::Gcra, &set) && !set.is_current());
        assert!(current.get().is_current());
    }

    /// The time between comparing and replacing is too short to be hit at each attempt, hence many.
    #[test]
    fn result_of_a_poll_does_not_replace_limits_that_were_set_since_it_began() {
        let (of_builder, set) = (vec![Limit::per_hour(10)], vec![Limit::per_hour(5)]);
        for _ in 0..2_000 {
            let current = CurrentLimits::new(of_builder.clone(), Window::Gcra);
            current.replace(Some(vec![Limit::per_hour(7)]), Window::Gcra);
            let (before, start) = (current.get(), Barrier::new(2));
            thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    current.apply_poll(None, Window::Gcra, &before);
                });
                start.wait();
                current.replace(Some(set.clone()), Window::Gcra);
            });
            assert_eq!(*current.get().limits, *set);
            assert!(!current.apply_poll(None, Window::Gcra, &before), "it is out of date");
        }
    }
}
