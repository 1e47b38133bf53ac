//! Builder methods that set how long entries are live, and when loaders refresh them.

use std::{fmt::Debug, time::Duration};

use super::Builder;
#[cfg(doc)]
use crate::cache::Cache;

impl<K, V, S> Builder<K, V, S> {
    /// Sets the time after which an entry expires if it is not read.
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
    /// Each hit of [`Cache::get`], [`Cache::get_many`] or a loader method sets the idle deadline to `idle` from now.
    /// The entry expires at its idle deadline or at the end of its TTL, whichever is earlier; [`Cache::ttl`] reports
    /// the earlier one. A write of a new value restarts the TTL and the idle time. Methods that set or remove a TTL
    /// ([`Cache::get_ex`], [`Cache::expire`], [`Cache::persist`] and the like) restart the idle time too. Other methods
    /// do not extend the idle deadline: [`Cache::contains_key`], [`Cache::ttl`], [`Cache::iter`], and
    /// [`Cache::update`], which changes a value in place.
    ///
    /// Each entry takes eight more bytes, and a hit writes eight bytes. With an `idle` of 5 s or more, hits use a
    /// coarse clock: of several hits within a few milliseconds only the first one writes, and the idle deadline may be
    /// up to 50 ms later than `idle` after the hit.
    ///
    /// By default, entries have no idle deadline.
    ///
    /// # Panics
    ///
    /// Panics if `idle` is zero.
    #[doc(alias = "expire_after_access")]
    #[doc(alias = "sliding")]
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        assert!(idle > Duration::ZERO, "time_to_idle must be above zero, got {idle:?}");
        self.settings.time_to_idle = Some(idle);
        self
    }

    /// Sets the maximum share by which a TTL is shortened at random, at least 0 and below 1.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A thousand values are loaded at the start. They expire over six minutes, not at the same moment.
    /// let hour = Duration::from_secs(3_600);
    /// let prices = Cache::builder().time_to_live(hour).jitter(0.1).build();
    /// prices.set_many((0..1_000).map(|share| (share, 100)), None).await;
    /// let Ttl::Remaining(ttl) = prices.ttl(&7).await else { unreachable!() };
    /// assert!(ttl >= hour.mul_f64(0.899) && ttl <= hour);
    /// # }
    /// ```
    ///
    /// Jitter prevents entries that were written together from expiring, and being loaded again, at the same time. It
    /// applies to values that are written or loaded, but not to [`Cache::expire`] and the like.
    /// [`Sweep::seed`](crate::Sweep::seed) makes it repeatable. Defaults to 0.
    ///
    /// # Panics
    ///
    /// Panics if `share` is NaN, negative, or at least 1.
    pub fn jitter(mut self, share: f64) -> Self {
        self.settings.set_jitter(share);
        self
    }

    /// Sets the time for which the error of a [loader](Cache::get_or_try_set_with) is kept for its key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let minute = Duration::from_secs(60);
    /// let users: Cache<u64, String> = Cache::builder().negative_ttl(Duration::from_secs(5)).build();
    /// let missing = async || Err("no such user");
    /// assert!(users.get_or_try_set_with(&7, minute, missing).await.is_err());
    ///
    /// // For five seconds, the database is not asked again.
    /// let ask = async || -> Result<_, &str> { unreachable!("the error is kept") };
    /// assert_eq!(*users.get_or_try_set_with(&7, minute, ask).await.unwrap_err(), "no such user");
    /// # }
    /// ```
    ///
    /// While an error is kept, calls with the same error type return it without running their loaders. A write to the
    /// key or its removal discards the error. [`Cache::remove_tag`] does not, since errors have no tags. At most
    /// [`max_entries`](Builder::max_entries) errors are kept, or 10,000 with [`max_weight`](Builder::max_weight). In a
    /// cache without a bound, the number of errors is not bounded either.
    ///
    /// By default, errors are not kept: your next call loads again.
    ///
    /// # Panics
    ///
    /// Panics if `ttl` is zero.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.settings.set_negative_ttl(ttl);
        self
    }

    /// Sets the time for which the loader methods may still return an expired value while they reload it in the
    /// background (RFC 5861).
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
    ///
    /// One refresh per key runs at a time, on the runtime of the cache (on that of the caller if the cache was built on
    /// a `current_thread` runtime, because such a runtime runs tasks only inside `block_on`). A refresh that fails, or
    /// takes more than a minute, is logged, counted in [`Stats`](crate::Stats) and reported to
    /// [`on_refresh_error`](Builder::on_refresh_error). The next one is started by a call at least a second later; with
    /// each further failure this delay doubles, up to a minute. Failed loads that callers wait for count for it, too.
    /// No other method returns an expired value.
    ///
    /// The entry stays in memory until this stale window ends, or that of [`stale_if_error`](Builder::stale_if_error)
    /// if it is longer. A full cache removes it earlier, because expired entries are removed before live ones. It is
    /// removed with cause [`Cause::Expired`](crate::Cause::Expired), and [`Event::deadline`](crate::Event::deadline) is
    /// the time at which the value expired. A write to the key or its removal ends the window. A value that is written
    /// or loaded with a TTL of zero has no stale window, so that it is never returned.
    ///
    /// Defaults to zero.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.settings.stale_while_revalidate = window;
        self
    }

    /// Sets the time for which the loader methods may still return an expired value if the loader fails (RFC 5861).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let minute = Duration::from_secs(60);
    /// let rates = Cache::builder().time_to_live(minute).stale_if_error(10 * minute).build();
    /// rates.set("EUR", 42).await;
    ///
    /// // The bank is down: for ten minutes, an old rate is better than none.
    /// tokio::time::advance(2 * minute).await;
    /// let load = async || Err("the bank is down");
    /// assert_eq!(rates.get_or_try_set_with(&"EUR", minute, load).await, Ok(42));
    /// # }
    /// ```
    ///
    /// Unlike with [`stale_while_revalidate`](Builder::stale_while_revalidate), a call waits for the load, and gets the
    /// expired value only if the load fails. If both are set, both windows start when the value expires, and the entry
    /// stays in memory until the longer one ends. Defaults to zero.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.settings.stale_if_error = window;
        self
    }

    /// Makes the loader methods refresh a value in the background before it expires, with a probability that increases
    /// toward its deadline.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // The front page is requested all the time: visitors rarely wait until it is rendered again.
    /// let pages: Cache<String, String> = Cache::builder()
    ///     .time_to_live(Duration::from_secs(10))
    ///     .refresh_ahead(1.0)
    ///     .build();
    /// let page = pages.get_or_set_with("/", None, async || "Welcome".to_owned()).await;
    /// # }
    /// ```
    ///
    /// A popular key is then usually reloaded before it expires, so that no caller has to wait for the load. The time
    /// of the refresh depends on `beta` and on the average duration of recent loads (XFetch: Vattani et al., "Optimal
    /// Probabilistic Cache Stampede Prevention", VLDB 2015). A `beta` of 1 suits keys that you read many times in the
    /// duration of a load; use 2 or 3 for keys that you read less often. Defaults to 0, which never refreshes ahead.
    ///
    /// A test on Tokio's paused clock can make refreshes certain: [testing a
    /// refresh](crate::guide::loaders#testing-a-refresh).
    ///
    /// Only the TTL counts, or a deadline set by [`expire`](Cache::expire) and the like. The end of the
    /// [idle time](Builder::time_to_idle) causes no refresh, and persistent values are never refreshed ahead.
    ///
    /// # Panics
    ///
    /// Panics if `beta` is NaN, infinite or negative.
    #[doc(alias = "refresh_after_write")]
    pub fn refresh_ahead(mut self, beta: f64) -> Self {
        self.settings.set_refresh_ahead(beta);
        self
    }

    /// Calls `hook` with the key and the error of each background refresh that fails.
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
    pub fn on_refresh_error(
        mut self,
        hook: impl Fn(&K, &dyn Debug) + Send + Sync + 'static,
    ) -> Self {
        self.refresh_error_hook = Some(Box::new(hook));
        self
    }
}
