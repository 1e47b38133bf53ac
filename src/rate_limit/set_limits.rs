//! Change of the limits of a running limiter: existing charges stay charged, and count by the new limits.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use super::{
    ByWindow, Limit, RateLimiter,
    algorithm::{Algorithm, LimitParams},
    dispatch,
    key_state::{KeyState, move_deadline},
    limit_set::LimitSet,
    limiter::Limiter,
};
use crate::engine::store::{Entry, Location};

impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Replaces the limits of a running limiter, for all its handles.
    ///
    /// Existing charges stay charged and count against the new limits. Limits are identified by their position; an
    /// additional limit begins with nothing in use. Waiters are woken and checked against the new limits. A call that
    /// is in progress on another thread may still be checked and charged by the old limits. If the length of a window
    /// changes, the charge of such a call may be too high or too low by the ratio of the two lengths.
    ///
    /// If a window becomes shorter, a key that was charged before is still removed when the old window has passed.
    ///
    /// A limit that is removed loses its usage, so another one at its position begins with nothing in use.
    ///
    /// With [`Window::Gcra`](super::Window::Gcra), used quota is converted to the same number of units, at most the new
    /// quota (a debt stays a debt); usage under other [plans](RateLimiter::check_with) is unchanged. A refund of a
    /// permit from before the change has no effect.
    ///
    /// # Cost
    ///
    /// If the length of a window changes, all keys are converted, at a few tenths of a microsecond each, under one
    /// shard lock at a time. After the first change, each check takes a few nanoseconds longer.
    ///
    /// # Panics
    ///
    /// Panics if `limits` is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder().limit(Limit::per_minute(100)).build();
    /// limiter.check_n("ada", 30).await.unwrap();
    ///
    /// limiter.set_limits([Limit::per_minute(50)]);
    /// assert_eq!(limiter.peek("ada").await.remaining(), 20);
    /// # }
    /// ```
    pub fn set_limits(&self, limits: impl IntoIterator<Item = Limit>) {
        let limits: Vec<Limit> = limits.into_iter().collect();
        assert!(!limits.is_empty(), "a rate limiter needs at least one limit, got none");
        dispatch!(&self.0, limiter => limiter.set_limits(limits));
    }
}

impl<K, S> RateLimiter<K, S> {
    /// Returns the limiter's own limits, which apply unless a call gives others.
    pub fn limits(&self) -> Arc<[Limit]> {
        dispatch!(&self.0, limiter => limiter.limits())
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn set_limits(&self, limits: Vec<Limit>) {
        let limit_set = Arc::new(LimitSet::new(limits.into(), self.window));
        let old = self.current_limits.replace(limit_set.clone());
        let differs = |(old, new): (&LimitParams, &LimitParams)| {
            let differs = old.per != new.per || old.step != new.step;
            // With a step of zero, more than a unit per nanosecond, the quota is part of the rate.
            differs || old.fraction != new.fraction || new.step == 0 && old.quota != new.quota
        };
        let is_removed = limit_set.params.len() < old.len();
        // Otherwise existing usage counts in the same way, and for as long, as before.
        if is_removed || old.iter().zip(&*limit_set.params).any(differs) {
            (0..self.shared.store.shard_count())
                .for_each(|shard| self.adapt(shard, &old, &limit_set));
            self.untracked.adapt(&old, &limit_set.params, &self.shared.clock.lazy_now());
        }
        // After the conversion, so that woken waiters find the usage by the new limits.
        self.current_limits.notify_change();
    }

    /// Converts the usage of the keys of one shard, and moves their deadlines.
    fn adapt(&self, shard: usize, old: &[LimitParams], limit_set: &LimitSet) {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // Key by key and not under one lock: a conversion takes some tenths of a microsecond, and checks would wait for
        // all of a shard.
        for (key, _, _) in store.snapshot(shard, clock) {
            let place: Location = store.locate(&key);
            let adapt = |entry: &mut Entry<KeyState<A>>| {
                let now = clock.lazy_now();
                entry.value.adapt(old, &limit_set.params, &now);
                move_deadline(entry, &limit_set.params);
            };
            // A key that was removed since the snapshot has no usage to convert.
            let _ = store.change_any(place, &key, adapt);
        }
    }
}
