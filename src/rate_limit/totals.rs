//! Totals over all shards of a limiter, and denials without a check.

use std::hash::{BuildHasher, Hash};

use super::{
    ByWindow, Limit, Limited, RateLimiter,
    algorithm::Algorithm,
    dispatch,
    limiter::Limiter,
    stats::{COUNTED, CheckCounts, LimiterStats, with_denials},
};
use crate::engine::{
    clock::Now,
    sync::atomic::Ordering::{Acquire, Relaxed},
    to_key::ToKey,
};

impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the statistics of the limiter: keys in memory, admitted and denied calls. O(shards).
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(2));
    /// for _call in 0..5 {
    ///     let _ = limiter.check("ada").await;
    /// }
    /// let stats = limiter.stats();
    /// assert_eq!((stats.keys, stats.admitted, stats.denied), (1, 2, 3));
    /// # }
    /// ```
    pub fn stats(&self) -> LimiterStats {
        dispatch!(&self.inner.0, limiter => limiter.stats())
    }

    /// Returns the limiter's limits, each with its share of the denials in [`stats`](RateLimiter::stats).
    ///
    /// If a call exceeded several limits, the one with the longest wait counts. Limits of other
    /// [plans](RateLimiter::check_with) count by their position, and all from the seventh on count as the seventh.
    /// O(shards).
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let (burst, hourly) = (Limit::per_second(1).named("burst"), Limit::per_hour(9).named("hourly"));
    /// let limiter = RateLimiter::<u32>::builder().limit(burst.clone()).limit(hourly.clone()).build();
    /// assert!(limiter.check(&7).await.is_ok());
    /// assert!(limiter.check(&7).await.is_err());
    /// assert_eq!(limiter.denials(), [(burst, 1), (hourly, 0)]);
    /// # }
    /// ```
    pub fn denials(&self) -> Vec<(Limit, u64)> {
        dispatch!(&self.inner.0, limiter => limiter.denials())
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn stats(&self) -> LimiterStats {
        let mut stats = LimiterStats {
            keys: self.shared.store.len(),
            overflowed: self.untracked.counts.checks(),
            refunded: self.refunds.load(Relaxed),
            // Read before the checks, which include them: a waiter is counted after its check. `Acquire` keeps the
            // loads in this order.
            waited: self.waited.load(Acquire),
            shadowed: self.shadowed.load(Acquire),
            ..LimiterStats::default()
        };
        self.all_counts().for_each(|counts| stats.add(counts));
        stats
    }

    pub(super) fn denials(&self) -> Vec<(Limit, u64)> {
        let mut denials = [0; COUNTED];
        for counts in self.all_counts() {
            denials.iter_mut().zip(counts.denials()).for_each(|(sum, denials)| *sum += denials);
        }
        with_denials(&self.limits(), denials.into_iter())
    }

    /// Counts and reports the denial of a call that waited, or would have to wait.
    pub(super) fn count_denied_waiter<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        limited: Limited,
    ) -> Limited
    where
        Q: ToKey<K> + ?Sized,
    {
        let is_it = |limit: &Limit| limit == limited.limit();
        let place = self.with_limits(limits, |by| by.limits.iter().position(is_it));
        // Not found if `set_limits` has replaced the limit since the denial.
        self.denied_waiters.count_denial(place.unwrap_or(0));
        let now = self.shared.clock.lazy_now().at_least();
        self.report_denial(self.shared.store.locate(key), key, now, limited.limit());
        limited
    }

    fn all_counts(&self) -> impl Iterator<Item = &CheckCounts> {
        self.counts.iter().chain([&self.untracked.counts, &self.denied_waiters])
    }
}
