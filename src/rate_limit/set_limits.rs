//! Change of the limits of a running limiter: existing charges stay charged.

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
    /// Replaces the limits of a running limiter, for all its handles: reload your configuration without a restart.
    ///
    /// Existing charges stay charged. The new limits are other limits of the same keys: [several limits for one
    /// key](crate::guide::rate_limits#several-limits-for-one-key) defines what each of them counts. Limits are
    /// identified by their position; an additional limit begins with nothing in use. So a limit that is removed and
    /// added again knows its earlier calls for as long as its window is.
    ///
    /// Waiters are woken and checked against the new limits. A call that is in progress on another thread may still be
    /// checked and charged by the old limits.
    ///
    /// With [`Window::Gcra`](super::Window::Gcra), used quota is converted to the same number of units, at most the new
    /// quota.
    ///
    /// # Cost
    ///
    /// If the length of a window changes, or a quota of [`Window::Gcra`](super::Window::Gcra), all keys are visited, at
    /// a few tenths of a microsecond each, under one shard lock at a time. After the first change, each check takes a
    /// few nanoseconds longer. A key that is charged by the old and by the new limits takes the memory of both until
    /// the old ones are not needed any more.
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
        dispatch!(&self.inner.0, limiter => limiter.set_limits(limits));
    }
}

impl<K, S> RateLimiter<K, S> {
    /// Returns the limiter's own limits, which apply unless a call gives others.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(100));
    /// for limit in limiter.limits().iter() {
    ///     println!("you may send {limit}"); // "100 in 60s"
    /// }
    /// # assert_eq!(*limiter.limits(), [Limit::per_minute(100)]);
    /// # }
    /// ```
    pub fn limits(&self) -> Arc<[Limit]> {
        dispatch!(&self.inner.0, limiter => limiter.limits())
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn set_limits(&self, limits: Vec<Limit>) {
        let limit_set = LimitSet::new(limits.into(), self.window);
        let params = limit_set.params.clone();
        let old = self.current_limits.replace(limit_set);
        // Otherwise the usage of each key counts as before: its states are those of the new limits, too.
        if !old.iter().zip(&*params).all(|(old, new)| A::new(old).is_for(new)) {
            (0..self.shared.store.shard_count()).for_each(|shard| self.convert(shard, &params));
            self.untracked.convert(&params, &self.shared.clock.lazy_now());
        }
        // After that, so that woken waiters find the usage by the new limits.
        self.current_limits.notify_change();
    }

    /// Keeps the keys of one shard for as long as their usage counts by new limits.
    fn convert(&self, shard: usize, params: &[LimitParams]) {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // Key by key and not under one lock: checks would wait for all of a shard.
        for (key, _, _) in store.snapshot(shard, clock) {
            let place: Location = store.locate(&key);
            let convert = |entry: &mut Entry<KeyState<A>>| {
                entry.value.convert(params, &clock.lazy_now());
                move_deadline(entry);
            };
            // A key that was removed since the snapshot has no usage.
            let _ = store.change_any(place, &key, convert);
        }
    }
}
