//! Builder methods that set how long entries are live, and when loaders refresh them.

use std::{fmt::Debug, time::Duration};

use super::Builder;
#[cfg(doc)]
use crate::cache::Cache;

impl<K, V, S> Builder<K, V, S> {
    /// Sets the time after which an entry expires if it is not read.
    ///
    /// Each hit of [`Cache::get`], [`Cache::get_many`] or a loader method extends the life of the entry by `idle`, up
    /// to the deadline given by its TTL. The earlier of both deadlines applies, and [`Cache::ttl`] reports it. A write
    /// restarts both, as do the methods that set or remove a deadline ([`Cache::get_ex`], [`Cache::expire`],
    /// [`Cache::persist`] and the like). Other methods ([`Cache::contains_key`], [`Cache::ttl`], [`Cache::iter`],
    /// [`Cache::update`]) do not extend the idle deadline.
    ///
    /// A hit costs one additional store, and an entry eight additional bytes. If `idle` is 5 s or more, only the first
    /// hit within a few milliseconds pays for the store, and a hit may extend the deadline by up to 50 ms more than
    /// `idle`, because it avoids the precise clock.
    ///
    /// Defaults to no such limit.
    ///
    /// # Panics
    ///
    /// Panics if `idle` is zero.
    ///
    /// # Examples
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
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        assert!(idle > Duration::ZERO, "time_to_idle must be above zero, got {idle:?}");
        self.settings.time_to_idle = Some(idle);
        self
    }

    /// Sets the maximum share by which a TTL is shortened at random, at least 0 and below 1.
    ///
    /// Jitter prevents entries that were written together from expiring, and being loaded again, at the same time. It
    /// applies to values that are written or loaded, but not to [`Cache::expire`] and the like.
    /// [`Sweep::seed`](crate::Sweep::seed) makes it repeatable. Defaults to 0.
    ///
    /// # Panics
    ///
    /// Panics if `share` is NaN, negative, or at least 1.
    pub fn jitter(mut self, share: f64) -> Self {
        assert!((0.0..1.0).contains(&share), "jitter must be at least 0 and below 1, got {share}");
        self.settings.jitter = share;
        self
    }

    /// Sets for how long the error of a [loader](Cache::get_or_try_set_with) is kept for its key.
    ///
    /// In the meantime calls whose error type is the same return this error, and their loaders do not run. A write to
    /// the key or its removal discards the error. The number of errors is bounded by
    /// [`max_entries`](Builder::max_entries) if that is set, and by 10,000 with [`max_weight`](Builder::max_weight).
    ///
    /// Defaults to none: the next call loads again.
    ///
    /// # Panics
    ///
    /// Panics if `ttl` is zero.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        assert!(ttl > Duration::ZERO, "negative_ttl must be above zero, got {ttl:?}");
        self.settings.negative_ttl = Some(ttl);
        self
    }

    /// Sets for how long the loader methods may still return an expired value while they reload it in the background
    /// (RFC 5861).
    ///
    /// One refresh per key runs at a time, on the runtime of the cache. A refresh that fails, or takes more than a
    /// minute, is logged, counted in [`Stats`](crate::Stats) and reported to
    /// [`on_refresh_error`](Builder::on_refresh_error). The next one is started by a call at least a second later; with
    /// each further failure this delay doubles, up to a minute. No other method returns an expired value.
    ///
    /// The entry stays in memory until the window ends. It is then removed as
    /// [`Cause::Expired`](crate::Cause::Expired), and [`Event::deadline`](crate::Event::deadline) is the time at which
    /// the value expired. A write to the key or its removal ends the window.
    ///
    /// Defaults to zero.
    ///
    /// # Examples
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
    /// assert_eq!(rates.get("EUR").await, Some(43)); // loaded in the background
    /// # }
    /// ```
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.settings.stale_while_revalidate = window;
        self
    }

    /// Sets for how long the loader methods may still return an expired value if the loader fails (RFC 5861).
    ///
    /// Otherwise the same as [`stale_while_revalidate`](Builder::stale_while_revalidate). If both are set, both windows
    /// start when the value expires. Defaults to zero.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.settings.stale_if_error = window;
        self
    }

    /// Makes the loader methods refresh a value in the background before it expires, with a probability that increases
    /// toward its deadline.
    ///
    /// So usually a single call reloads a popular key, instead of all of them when it has expired. The start also
    /// depends on the recent duration of loads (XFetch: Vattani et al., "Optimal Probabilistic Cache Stampede
    /// Prevention", VLDB 2015). A `beta` of 1 suits most caches, and a higher one starts earlier. Defaults to 0, which
    /// never refreshes ahead.
    ///
    /// # Panics
    ///
    /// Panics if `beta` is NaN, infinite or negative.
    pub fn refresh_ahead(mut self, beta: f64) -> Self {
        assert!(
            beta >= 0.0 && beta.is_finite(),
            "refresh_ahead must be a number and at least 0, got {beta}"
        );
        self.settings.refresh_ahead = beta;
        self
    }

    /// Calls `hook` with the key and the error of each background refresh that fails.
    ///
    /// While [`stale_while_revalidate`](Builder::stale_while_revalidate) or
    /// [`refresh_ahead`](Builder::refresh_ahead) hides the outage of a source from callers, this hook reports it: count
    /// the failures, or raise an alarm. The error is that of the loader. If the loader panicked or took too long, it is
    /// a message that names the cause. Each failure is also logged as `background refresh failed`, with `cache` and
    /// `error`.
    ///
    /// The hook is not called for loads that a caller waits for, nor if the last handle of the cache was dropped during
    /// the refresh. It runs on the task that refreshed and under no lock, so it may call the cache; it should not
    /// block. A panic in it is logged. The cache owns the hook, so the hook must not own a handle to this cache, which
    /// would keep the cache alive forever; a [`WeakCache`](crate::WeakCache) does not.
    ///
    /// Defaults to none.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{
    ///     sync::{Arc, atomic::{AtomicU32, Ordering::Relaxed}},
    ///     time::Duration,
    /// };
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let failures = Arc::new(AtomicU32::new(0));
    /// let counter = failures.clone();
    /// let minute = Duration::from_secs(60);
    /// let rates = Cache::<String, u32>::builder()
    ///     .stale_while_revalidate(minute)
    ///     .on_refresh_error(move |_key, _error| _ = counter.fetch_add(1, Relaxed))
    ///     .build();
    /// rates.set_ex("EUR".to_owned(), 42, minute).await;
    /// tokio::time::advance(minute).await;
    ///
    /// let fails = async || Err::<u32, _>("the source is down");
    /// assert_eq!(rates.get_or_try_set_with("EUR", minute, fails).await, Ok(42)); // stale
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert_eq!(failures.load(Relaxed), 1);
    /// # }
    /// ```
    pub fn on_refresh_error(
        mut self,
        hook: impl Fn(&K, &dyn Debug) + Send + Sync + 'static,
    ) -> Self {
        self.refresh_error_hook = Some(Box::new(hook));
        self
    }
}
