//! Sets up a limiter: what its defaults are, and what they start.

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
    ByWindow, Limit, RateLimiter, Window, algorithm::Algorithm, limiter::Limiter,
    waiting::WaitSettings,
};
use crate::engine::{
    hasher::DefaultHasher,
    shards::{checked_shards, default_shards},
    state::SharedState,
    store::Store,
    sweeper::{self, Sweep},
};

/// Sets up a [`RateLimiter`]. Made by [`RateLimiter::builder`].
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
    keys: PhantomData<fn() -> K>,
    #[cfg(feature = "dashboard")]
    show_keys: Option<ShowKey<K>>,
}

impl<K> RateLimiter<K> {
    /// Sets up a limiter.
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
            keys: PhantomData,
            #[cfg(feature = "dashboard")]
            show_keys: None,
        }
    }
}

impl<K, S> RateLimiterBuilder<K, S> {
    /// One more limit: all of them hold at once. Defaults to none, with which nothing can be built.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// How what has passed is counted. Defaults to [`Window::Log`], which is exact.
    ///
    /// # Panics
    ///
    /// Where the number of [`Window::Buckets`] is 0 or above 10,000.
    pub fn window(mut self, window: Window) -> Self {
        self.window = window.checked();
        self
    }

    /// How many keys are held at most. Defaults to a million; `usize::MAX` is no bound.
    ///
    /// A key that is in use is never given up for another: new keys beyond the bound share one window of
    /// the same limits, and are limited together, until keys that are idle have left. An idle key leaves
    /// with the next sweep that looks at it; at the bound, new keys also look for one among some hundred, once a
    /// millisecond while they find none. What each of them had of the shared window it keeps when there is room
    /// for it (for as many as `keys`, and 1,024 at least; where there are more in `per`, new keys share until
    /// those are idle).
    ///
    /// # Panics
    ///
    /// Where `keys` is 0.
    pub fn max_keys(mut self, keys: usize) -> Self {
        assert!(keys > 0, "max_keys must be at least 1, got {keys}");
        self.max_keys = keys;
        self
    }

    /// How many may wait for a key at a time by [`until_ready_within`](RateLimiter::until_ready_within) or in a layer:
    /// who comes then is denied at once. Who waits without an end is never sent away, but counts. Defaults to
    /// no bound, but what may pass in time.
    ///
    /// # Panics
    ///
    /// Where `waiting` is 0.
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        assert!(waiting > 0, "max_waiting must be at least 1, got {waiting}");
        self.wait.most = waiting;
        self
    }

    /// Up to how much longer one waits that has to wait, so that not all who are let in come at the same moment: a
    /// random part of it, anew each time that it is told to wait. Those behind it wait along. Who may pass at once
    /// does, and no wait goes beyond its end. Defaults to zero.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.wait.jitter = jitter;
        self
    }

    /// How idle keys are found. Defaults to [`Sweep::default`]: a second at most after they are idle.
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// How many parts the limiter has, each with a lock of its own; rounded up to a power of two, and to 2
    /// at least. Defaults to four for each core, 64 at least.
    ///
    /// # Panics
    ///
    /// Where `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = checked_shards(shards).max(2);
        self
    }

    /// What hashes the keys. Defaults to foldhash, which is fast and seeded for each limiter, but only
    /// partly resists chosen collisions: where an attacker chooses the keys, take
    /// [`std::hash::RandomState`].
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
            keys: PhantomData,
            #[cfg(feature = "dashboard")]
            show_keys: self.show_keys,
        }
    }

    /// The name that tracing and [metrics](crate::guide::metrics) show. Defaults to `limiter`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Lets the [dashboard](crate::dashboard()) show the keys that are denied most often (feature `dashboard`), as `text`
    /// writes them. It runs for denied calls alone, with a clone of the key, and for each of them in a flood of many keys; where
    /// it panics, a hash stands in its place. Defaults to hashes, which tell that two are the same and nothing else.
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
    /// Makes the limiter, and starts the task on the current Tokio runtime that forgets idle keys.
    ///
    /// # Panics
    ///
    /// Without a [`limit`](RateLimiterBuilder::limit), outside of a Tokio runtime, and on one without a
    /// time driver (`enable_time`).
    pub fn build(self) -> RateLimiter<K, S> {
        assert!(!self.limits.is_empty(), "a rate limiter needs at least one limit, got none");
        RateLimiter(match self.window {
            Window::Log => ByWindow::Log(self.limiter()),
            Window::Buckets(_) => ByWindow::Buckets(self.limiter()),
            Window::Gcra => ByWindow::Gcra(self.limiter()),
        })
    }

    fn limiter<A: Algorithm>(self) -> Arc<Limiter<K, A, S>> {
        let hasher = self.hasher.clone();
        let store = Store::new(self.shards, 0, self.hasher).bounded(self.max_keys);
        let shared = sweeper::start(SharedState::new(store, 0, 1, self.sweep, self.name));
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
        super::metrics::follow(&limiter);
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
