//! Builder of a limiter, with its defaults.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "dashboard")]
use super::top_denied::{ShowKey, TopDenied};
use super::{
    ByWindow, Limit, RateLimiter, SyncRateLimiter, Window, algorithm::Algorithm, limiter::Limiter,
    waiting::WaitSettings,
};
use crate::engine::{
    hasher::DefaultHasher,
    shards::{checked_shards, default_shards},
    shared_state::SharedState,
    store::Store,
    sweeper::{self, Sweep},
};

/// Builder of a [`RateLimiter`], for several limits or settings of your own. Created by [`RateLimiter::builder`].
///
/// ```
/// # use fleeting::{Limit, RateLimiter, Window};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter: RateLimiter<String> = RateLimiter::builder()
///     .name("api")
///     .limit(Limit::per_second(10))
///     .limit(Limit::per_hour(5_000))
///     .window(Window::Buckets(60))
///     .max_keys(100_000)
///     .build();
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimiterBuilder<K, S = DefaultHasher> {
    limits: Vec<Limit>,
    window: Window,
    max_keys: usize,
    wait: WaitSettings,
    sweep: Sweep,
    shards: usize,
    hasher: S,
    name: String,
    in_background: bool,
    keys: PhantomData<fn() -> K>,
    #[cfg(feature = "dashboard")]
    show_keys: Option<ShowKey<K>>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> RateLimiter<K> {
    /// Creates a limiter with one limit and the default settings: [`builder`](RateLimiter::builder) with nothing else.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::new(Limit::per_minute(100));
    /// assert_eq!(limiter.check("ada").await.unwrap().remaining(), 99);
    /// # let _: RateLimiter<String> = limiter;
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics where [`build`](RateLimiterBuilder::build) does: outside of a Tokio runtime.
    pub fn new(limit: Limit) -> Self {
        Self::builder().limit(limit).build()
    }
}

impl<K> RateLimiter<K> {
    /// Returns a builder with the default settings.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_second(5))
    ///     .limit(Limit::per_minute(100))
    ///     .build();
    /// assert_eq!(limiter.check("ada").await.unwrap().remaining(), 4);
    /// # }
    /// ```
    #[doc(alias = "keyed")]
    #[doc(alias = "direct")]
    pub fn builder() -> RateLimiterBuilder<K> {
        RateLimiterBuilder::new()
    }
}

impl<K> RateLimiterBuilder<K> {
    fn new() -> Self {
        Self {
            limits: Vec::new(),
            window: Window::default(),
            max_keys: 1_000_000,
            wait: WaitSettings::default(),
            sweep: Sweep::default(),
            shards: default_shards(),
            hasher: DefaultHasher::default(),
            name: "limiter".to_owned(),
            in_background: false,
            keys: PhantomData,
            #[cfg(feature = "dashboard")]
            show_keys: None,
        }
    }
}

impl<K, S> RateLimiterBuilder<K, S> {
    /// Adds a limit. All limits of a limiter apply together. Defaults to none; [`build`](RateLimiterBuilder::build)
    /// needs at least one.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let logins = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_minute(3).named("mistyped"))
    ///     .limit(Limit::per_hour(10).named("guessing"))
    ///     .build();
    /// logins.check_n("ada", 3).await.unwrap();
    /// let limited = logins.check("ada").await.unwrap_err();
    /// assert_eq!(limited.limit().name(), Some("mistyped"));
    /// # }
    /// ```
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets the algorithm that counts admitted calls. Defaults to [`Window::Log`], which is exact.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter, Window};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A device may send ten messages at once, and then one every six seconds.
    /// let messages = RateLimiter::<u32>::builder()
    ///     .limit(Limit::per_minute(10))
    ///     .window(Window::Gcra)
    ///     .build();
    /// messages.check_n(&7, 10).await.unwrap();
    /// assert_eq!(messages.check(&7).await.unwrap_err().retry_after(), Duration::from_secs(6));
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the number of [`Window::Buckets`] is 0 or above 10,000.
    pub fn window(mut self, window: Window) -> Self {
        self.window = window.checked();
        self
    }

    /// Sets the maximum number of keys in memory. Defaults to 1,000,000; `usize::MAX` means no bound.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<u32>::builder().limit(Limit::per_minute(2)).max_keys(1_000).build();
    /// for client in 0..1_000 {
    ///     limiter.check(&client).await.unwrap();
    /// }
    /// // All further clients share one quota.
    /// limiter.check(&1_001).await.unwrap();
    /// limiter.check(&1_002).await.unwrap();
    /// assert!(limiter.check(&1_003).await.is_err());
    /// # }
    /// ```
    ///
    /// With one limit, a million 20-byte `String` keys take 210 to 260 MB: 207 bytes each with [`Window::Gcra`], 257
    /// with `Window::Buckets(10)`, and with [`Window::Log`] 224 for one or two calls and 416 for ten.
    ///
    /// A key that is in use (some of its charges still count toward a limit) is never evicted. At the bound, new keys
    /// share one quota, as if they were one key, until idle keys have been removed. The sweeper removes idle keys. A
    /// check of a new key at the bound also searches a few hundred entries for idle ones. After an unsuccessful search,
    /// the next one starts at least a millisecond later. A [`peek`](RateLimiter::peek) of a new key at the bound does
    /// not search: it returns what is left of the shared quota.
    ///
    /// The usage of each key that shares the quota is recorded too, and is carried over when the key gets an entry. Up
    /// to `keys` of these records are kept, or 1,024 if `keys` is less. If more keys are checked, new keys share the
    /// quota even below the bound, until the last charge of the shared quota has expired.
    ///
    /// # Panics
    ///
    /// Panics if `keys` is 0.
    pub fn max_keys(mut self, keys: usize) -> Self {
        assert!(keys > 0, "max_keys must be at least 1, got {keys}");
        self.max_keys = keys;
        self
    }

    /// Sets how many calls may wait for one key at a time, by [`until_ready_within`](RateLimiter::until_ready_within)
    /// or in a layer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter =
    ///     RateLimiter::<String>::builder().limit(Limit::per_second(1)).max_waiting(1).build();
    /// limiter.check("ada").await.unwrap();
    ///
    /// // Of two calls that would wait, one is denied immediately.
    /// let wait = || limiter.until_ready_within("ada", Duration::from_secs(60));
    /// let (first, second) = tokio::join!(wait(), wait());
    /// assert!(first.is_ok() && second.is_err());
    /// # }
    /// ```
    ///
    /// A call that would exceed this is denied immediately. Calls that wait without a time limit are never denied for
    /// this reason, but they count. Defaults to no maximum other than the number of calls that may pass in time.
    ///
    /// # Panics
    ///
    /// Panics if `waiting` is 0.
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        assert!(waiting > 0, "max_waiting must be at least 1, got {waiting}");
        self.wait.max_waiting = waiting;
        self
    }

    /// Sets the maximum random delay that is added to each wait, so that waiters do not all proceed at the same
    /// instant.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::Instant;
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_second(1))
    ///     .jitter(Duration::from_millis(200))
    ///     .build();
    /// limiter.until_ready("mail server").await;
    ///
    /// let start = Instant::now();
    /// limiter.until_ready("mail server").await;
    /// assert!(start.elapsed() >= Duration::from_secs(1));
    /// assert!(start.elapsed() <= Duration::from_millis(1_202));
    /// # }
    /// ```
    ///
    /// The delay is drawn each time a call has to wait, and the waiters behind it are delayed as well, so fewer calls
    /// pass per second ([`Window::Gcra`] makes up for most of it). A call that may pass immediately is not delayed, and
    /// no wait exceeds its maximum. Defaults to zero.
    #[doc(alias = "Jitter")]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.wait.jitter = jitter;
        self
    }

    /// Sets how the sweeper finds idle keys. Defaults to [`Sweep::default`], which removes an idle key within 100 ms
    /// plus the duration of a sweep.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter, Sweep};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Idle keys may stay in memory for ten seconds: fewer wake-ups.
    /// let limiter = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_hour(100))
    ///     .sweep(Sweep::default().every(Duration::from_secs(10)))
    ///     .build();
    /// # }
    /// ```
    #[doc(alias = "retain_recent")]
    #[doc(alias = "shrink_to_fit")]
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Sets the number of shards, each with its own lock. It is rounded up to a power of two, at least 2. Defaults to
    /// four per core, at least 64.
    ///
    /// # Panics
    ///
    /// Panics if `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        // `DashMap` panics with a single shard.
        self.shards = checked_shards(shards).max(2);
        self
    }

    /// Sets the hasher of the keys. If an attacker can choose your keys, use [`std::hash::RandomState`]. Defaults to
    /// foldhash, which is fast and seeded for each limiter, but offers only limited protection against hash-collision
    /// attacks.
    ///
    /// ```
    /// # use std::hash::RandomState;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Clients choose the names by which they are limited.
    /// let logins = RateLimiter::<String>::builder()
    ///     .limit(Limit::per_minute(5))
    ///     .hasher(RandomState::new())
    ///     .build();
    /// logins.check("ada").await.unwrap();
    /// # }
    /// ```
    pub fn hasher<T>(self, hasher: T) -> RateLimiterBuilder<K, T> {
        RateLimiterBuilder {
            limits: self.limits,
            window: self.window,
            max_keys: self.max_keys,
            wait: self.wait,
            sweep: self.sweep,
            shards: self.shards,
            hasher,
            name: self.name,
            in_background: self.in_background,
            keys: PhantomData,
            #[cfg(feature = "dashboard")]
            show_keys: self.show_keys,
        }
    }

    /// Sets the name of the limiter in logs, traces and [metrics](crate::guide::metrics). Defaults to `limiter`.
    ///
    /// ```
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let logins = RateLimiter::<String>::builder().name("logins").limit(Limit::per_minute(5)).build();
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Removes idle keys on a thread of this crate, in place of the current Tokio runtime. So you can build the limiter
    /// anywhere: in a `static`, in a constructor that is not async, in a program without a runtime.
    ///
    /// ```
    /// use std::sync::LazyLock;
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// static LOGINS: LazyLock<RateLimiter<String>> = LazyLock::new(|| {
    ///     RateLimiter::builder().limit(Limit::per_minute(5)).background_thread().build()
    /// });
    ///
    /// fn main() {
    ///     // From code that is not async:
    ///     assert!(LOGINS.sync().check("ada").is_ok());
    /// }
    /// ```
    ///
    /// The thread is the one of [`Builder::background_thread`](crate::Builder::background_thread), with the same rules:
    /// the clock is real time, and the limiter outlives every runtime.
    #[doc(alias = "without a runtime")]
    #[doc(alias = "static")]
    pub fn background_thread(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Shows the most frequently denied keys on the [dashboard](crate::dashboard()) (feature `dashboard`), formatted by
    /// `text`.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::<String>::builder()
    ///     .name("requests")
    ///     .limit(Limit::per_minute(100))
    ///     .show_keys(|user| user.clone())
    ///     .build();
    /// # }
    /// ```
    ///
    /// `text` runs only for denied calls, with a clone of the key. In a flood of many keys it runs for each of them. If
    /// it panics, a hash is shown instead. Defaults to hashes, which reveal only that two entries are the same key.
    #[cfg(feature = "dashboard")]
    #[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
    pub fn show_keys(mut self, text: impl Fn(&K) -> String + Send + Sync + 'static) -> Self {
        self.show_keys = Some(Arc::new(text));
        self
    }
}

impl<K, S> RateLimiterBuilder<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Builds the limiter, and starts the task that removes idle keys on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics without a [`limit`](RateLimiterBuilder::limit). Panics outside of a Tokio runtime and on one without a
    /// time driver (`enable_time`), unless it runs on the [background thread](RateLimiterBuilder::background_thread).
    pub fn build(self) -> RateLimiter<K, S> {
        assert!(!self.limits.is_empty(), "a rate limiter needs at least one limit, got none");
        let inner = SyncRateLimiter(match self.window {
            Window::Log => ByWindow::Log(self.limiter()),
            Window::Buckets(_) => ByWindow::Buckets(self.limiter()),
            Window::Gcra => ByWindow::Gcra(self.limiter()),
        });
        RateLimiter { inner }
    }

    fn limiter<A: Algorithm>(self) -> Arc<Limiter<K, A, S>> {
        let hasher = self.hasher.clone();
        let store = Store::new(self.shards, 0, self.hasher).bounded(self.max_keys);
        let state = SharedState::new(store, 0, 1, self.sweep, self.name, self.in_background);
        let shared = sweeper::start(state);
        let limiter = Limiter::new(
            shared,
            self.window,
            self.limits,
            self.max_keys,
            self.wait,
            hasher,
            #[cfg(feature = "dashboard")]
            TopDenied::new(self.show_keys),
        );
        #[cfg(feature = "metrics")]
        super::metrics::register_limiter(&limiter);
        limiter
    }
}

impl<K, S> fmt::Debug for RateLimiterBuilder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiterBuilder")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .field("window", &self.window)
            .field("max_keys", &self.max_keys)
            .field("wait", &self.wait)
            .field("sweep", &self.sweep)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
