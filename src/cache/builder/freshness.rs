//! What decides for how long values are fresh, and what is done about it.

use std::time::Duration;

use super::Builder;

impl<K, V, S> Builder<K, V, S> {
    /// How long a value may live without being read. Each hit of [`Cache::get`](crate::Cache::get) or of a verb that loads gives it so much
    /// more, up to the deadline that it has from its TTL: the sooner of both counts, and [`Cache::ttl`](crate::Cache::ttl) tells that one.
    /// A write begins both anew, and so does what gives a value a deadline or takes it away ([`Cache::get_ex`](crate::Cache::get_ex),
    /// [`Cache::expire`](crate::Cache::expire) and its like). What else looks at a value ([`Cache::contains_key`](crate::Cache::contains_key), [`Cache::ttl`](crate::Cache::ttl),
    /// [`Cache::iter`](crate::Cache::iter), [`Cache::update`](crate::Cache::update)) gives it nothing.
    ///
    /// A hit costs a store more than without, and an entry eight bytes. With 5 s or more only the first hit of some
    /// milliseconds costs that, and a hit may give up to 50 ms more than this, since it doesn't ask the precise clock.
    /// Defaults to no such limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let hours = |n: u64| Duration::from_secs(3_600 * n);
    /// let sessions = Cache::builder().time_to_live(hours(12)).time_to_idle(hours(1)).build();
    /// sessions.set("ada", 42).await;
    /// for _ in 0..12 {
    ///     assert!(sessions.get("ada").await.is_some());
    ///     tokio::time::advance(hours(1) - Duration::from_nanos(1)).await;
    /// }
    /// tokio::time::advance(Duration::from_nanos(12)).await;
    /// assert!(sessions.get("ada").await.is_none());
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Where `idle` is zero.
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        assert!(idle > Duration::ZERO, "time_to_idle must be above zero, got {idle:?}");
        self.settings.time_to_idle = Some(idle);
        self
    }

    /// By which share of it a TTL is shortened at most, by chance: so that what was written together does not die, and is
    /// not loaded again, together. It counts for values that are written or loaded, and not for
    /// [`Cache::expire`](crate::Cache::expire) and its like. Defaults to 0. [`Sweep::seed`](crate::Sweep::seed) makes it repeatable.
    ///
    /// # Panics
    ///
    /// Where `share` is below 0, 1 or above, or no number.
    pub fn jitter(mut self, share: f64) -> Self {
        assert!((0.0..1.0).contains(&share), "jitter must be at least 0 and below 1, got {share}");
        self.settings.jitter = share;
        self
    }

    /// How long the error of a [loader](crate::Cache::get_or_try_set_with) is kept for its key: who asks meanwhile gets it, and
    /// nothing is loaded. What is written to the key, or removes it, ends that. Such errors are bounded as the entries
    /// are by [`max_entries`](Builder::max_entries); with [`max_weight`](Builder::max_weight) they are 10,000 at most. Defaults to none: the next call loads again.
    ///
    /// # Panics
    ///
    /// Where `ttl` is zero.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        assert!(ttl > Duration::ZERO, "negative_ttl must be above zero, got {ttl:?}");
        self.settings.negative_ttl = Some(ttl);
        self
    }

    /// How long a value may still be returned after its death by the verbs that load, which then load anew in the
    /// background (RFC 5861). One such refresh runs for a key at a time, on the runtime of the cache. One that fails, or takes more than a minute, is
    /// logged and counted in [`Stats`](crate::Stats), and tried again by a call a second later at the soonest, then
    /// two, up to a minute. No other verb returns what is dead. A refresh that takes
    /// longer than a minute has failed. Defaults to zero.
    ///
    /// The value stays in memory until this time is over; then it leaves as [`Cause::Expired`](crate::Cause::Expired), and
    /// [`Event::deadline`](crate::Event::deadline) is when it died. What is written to the key, or removes it, ends
    /// that.
    ///
    /// ```
    /// use std::{convert::Infallible, time::Duration};
    /// use fleeting::{Cache, Freshness};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let minute = Duration::from_secs(60);
    /// let rates = Cache::builder().stale_while_revalidate(minute).build();
    /// rates.set_ex("EUR".to_owned(), 42, minute).await;
    /// tokio::time::advance(minute).await;
    ///
    /// let load = async || Ok::<_, Infallible>(43);
    /// let (rate, freshness) = rates.get_or_try_set_with_freshness("EUR", minute, load).await.unwrap();
    /// assert_eq!((rate, freshness), (42, Freshness::Stale));
    ///
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert_eq!(rates.get("EUR").await, Some(43)); // loaded meanwhile
    /// # }
    /// ```
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.settings.stale_while_revalidate = window;
        self
    }

    /// How long a value may still be returned after its death where its loader fails (RFC 5861); else as
    /// [`stale_while_revalidate`](Builder::stale_while_revalidate). Where both are given, both begin at the death.
    /// Defaults to zero.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.settings.stale_if_error = window;
        self
    }

    /// Has the verbs that load do so in the background already before a value dies: the likelier the closer that is, so
    /// that one call does, mostly, and not all of them when it is dead. 1 suits most; the more, the earlier; 0, the
    /// default, is never. How early also follows from how long loads take, of late (XFetch: Vattani et al., "Optimal
    /// Probabilistic Cache Stampede Prevention", VLDB 2015).
    ///
    /// # Panics
    ///
    /// Where `beta` is below 0, or no number.
    pub fn refresh_ahead(mut self, beta: f64) -> Self {
        assert!(
            beta >= 0.0 && beta.is_finite(),
            "refresh_ahead must be a number and at least 0, got {beta}"
        );
        self.settings.refresh_ahead = beta;
        self
    }
}
