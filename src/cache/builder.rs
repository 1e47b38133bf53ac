//! Builder of a cache: configuration, defaults and construction; and how many failed loads are kept at most.

mod bounds;
mod freshness;

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{
    Cache, SyncCache,
    bounds::ConfiguredBound,
    freshness_policy::{FreshnessPolicy, FreshnessSettings, RefreshErrorHook},
};
#[cfg(feature = "dashboard")]
use crate::engine::shared_state::Inspect;
use crate::engine::{
    event::Cause,
    failed_loads,
    hasher::DefaultHasher,
    shards::{checked_shards, default_shards, shards_by_entries, shards_by_weight},
    shared_state::SharedState,
    store::Store,
    sweeper::{self, Sweep},
};

/// Configuration of a [`Cache`]: bounds, TTL, freshness, events. Created by [`Cache::builder`].
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::Cache;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let users: Cache<u64, String> = Cache::builder()
///     .max_entries(10_000)
///     .time_to_live(Duration::from_secs(60))
///     .build();
/// # }
/// ```
///
/// A cache without [`max_entries`](Builder::max_entries) and [`max_weight`](Builder::max_weight) is unbounded.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K, V, S = DefaultHasher> {
    settings: FreshnessSettings,
    sweep: Sweep,
    /// `None`: derived from the bound in `build`.
    shards: Option<usize>,
    initial_capacity: usize,
    hasher: S,
    event_capacity: usize,
    causes: u8,
    name: String,
    in_background: bool,
    bound: ConfiguredBound<K, V>,
    refresh_error_hook: Option<RefreshErrorHook<K>>,
    #[cfg(feature = "dashboard")]
    inspect: Option<Inspect<K>>,
}

impl<K, V> Builder<K, V> {
    pub(super) fn new() -> Self {
        Self {
            settings: FreshnessSettings::default(),
            sweep: Sweep::default(),
            shards: None,
            initial_capacity: 0,
            hasher: DefaultHasher::default(),
            event_capacity: 1_024,
            causes: Cause::Expired.bit() | Cause::Evicted.bit(),
            name: "cache".to_owned(),
            in_background: false,
            bound: ConfiguredBound::None,
            refresh_error_hook: None,
            #[cfg(feature = "dashboard")]
            inspect: None,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// Sets the default TTL. It applies to [`Cache::set`], and to other methods that write a value if their `ttl` is
    /// `None` or if they have no such argument.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::builder().time_to_live(Duration::from_secs(1_800)).build();
    /// sessions.set("token", "ada").await;
    /// sessions.set_ex("short", "bob", Duration::from_secs(60)).await;
    ///
    /// tokio::time::advance(Duration::from_secs(60)).await;
    /// assert_eq!(sessions.get("token").await, Some("ada"));
    /// assert_eq!(sessions.get("short").await, None);
    /// # }
    /// ```
    ///
    /// Defaults to none: values written without a TTL are persistent.
    #[doc(alias = "expire_after_write")]
    pub fn time_to_live(mut self, ttl: Duration) -> Self {
        self.settings.time_to_live = Some(ttl);
        self
    }

    /// Sets how expired entries are found and removed from memory.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Sweep};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Expired entries may stay in memory for a minute: fewer wake-ups.
    /// let sweep = Sweep::default().every(Duration::from_secs(60));
    /// let answers: Cache<String, [u8; 4]> = Cache::builder().sweep(sweep).build();
    /// # }
    /// ```
    ///
    /// You change only memory use and the delay of events. Methods check the deadline themselves, so an expired value
    /// is not returned even if it has not been swept (except by the loader methods within a [stale
    /// window](Builder::stale_while_revalidate)). Defaults to [`Sweep::default`], which removes an expired entry within
    /// 100 ms plus the duration of the sweep.
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Sets the number of shards, each of which has its own lock; rounded up to a power of two, and to at least 2.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Many threads write to a large cache at the same time.
    /// let counters: Cache<u64, u64> = Cache::builder().shards(1_024).build();
    /// # }
    /// ```
    ///
    /// More shards reduce contention between threads. But a write to a bounded cache evicts entries of its own shard,
    /// and those of others only if that does not suffice, so evictions become less accurate.
    ///
    /// The default is four per core, but at least 64. A cache with a small [`max_entries`](Builder::max_entries) has
    /// fewer shards, so that the bound allows at least 32 entries per shard, or four if you set the number of shards;
    /// it always has at least two shards. A cache with [`max_weight`](Builder::max_weight) has at most 16 by default.
    ///
    /// # Panics
    ///
    /// Panics if `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        // `DashMap` panics with a single shard.
        self.shards = Some(checked_shards(shards).max(2));
        self
    }

    /// Reserves memory for this many entries, which is not released until the cache is dropped.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // A million users are loaded at the start: no table grows while they are.
    /// let users: Cache<u64, String> =
    ///     Cache::builder().initial_capacity(1_000_000).build();
    /// # }
    /// ```
    ///
    /// If the allocation fails, [`build`](Builder::build) panics or aborts the process. Defaults to 0.
    ///
    /// # Panics
    ///
    /// Panics if `entries` is above `isize::MAX`.
    #[doc(alias = "with_capacity")]
    pub fn initial_capacity(mut self, entries: usize) -> Self {
        assert!(
            entries <= isize::MAX as usize,
            "initial_capacity must be at most isize::MAX, got {entries}"
        );
        self.initial_capacity = entries;
        self
    }

    /// Sets the hasher of the keys.
    ///
    /// ```
    /// # use std::hash::RandomState;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Users choose the keys.
    /// let logins: Cache<String, u32, _> = Cache::builder().hasher(RandomState::new()).build();
    /// # }
    /// ```
    ///
    /// Defaults to foldhash, which is fast and seeded per cache, but offers only limited protection against
    /// hash-collision attacks. If an attacker can choose your keys, use [`std::hash::RandomState`].
    #[doc(alias = "build_with_hasher")]
    #[doc(alias = "with_hasher")]
    pub fn hasher<T>(self, hasher: T) -> Builder<K, V, T> {
        Builder {
            settings: self.settings,
            sweep: self.sweep,
            shards: self.shards,
            initial_capacity: self.initial_capacity,
            hasher,
            event_capacity: self.event_capacity,
            causes: self.causes,
            name: self.name,
            in_background: self.in_background,
            bound: self.bound,
            refresh_error_hook: self.refresh_error_hook,
            #[cfg(feature = "dashboard")]
            inspect: self.inspect,
        }
    }

    /// Sets how many events a subscriber of [`Cache::events`] may fall behind before it misses the oldest.
    ///
    /// ```
    /// # use fleeting::{Cache, Lagged};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let prices = Cache::builder().event_capacity(2).build();
    /// let mut events = prices.events();
    /// for share in 0..5 {
    ///     prices.set(share, 100).await;
    ///     prices.expire_now(&share).await;
    /// }
    /// assert_eq!(events.recv().await, Some(Err(Lagged(3))), "three were missed");
    /// assert_eq!(events.recv().await.unwrap().unwrap().key, 3);
    /// # }
    /// ```
    ///
    /// Defaults to 1,024.
    ///
    /// # Panics
    ///
    /// Panics if `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.event_capacity = events;
        self
    }

    /// Sets the causes of removal that are published as events.
    ///
    /// ```
    /// # use fleeting::{Cache, Cause};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // An audit log needs the logouts, too.
    /// let sessions = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
    /// let mut events = sessions.events_lossless(1_024);
    /// sessions.set("token", "ada").await;
    /// sessions.remove("token").await;
    /// assert_eq!(events.recv().await.unwrap().cause, Cause::Removed);
    /// # }
    /// ```
    ///
    /// It applies to [`Cache::events`] and [`Cache::events_lossless`], but neither to [`Cache::on_expired`] nor to
    /// [`Cache::expired`]. Defaults to [`Cause::Expired`] and [`Cause::Evicted`].
    #[doc(alias = "RemovalCause")]
    pub fn publish(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes = Cause::bits(causes);
        self
    }

    /// Sets the name of the cache in logs, traces and [metrics](crate::guide::metrics).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let sessions: Cache<u64, String> = Cache::builder().name("sessions").build();
    /// assert_eq!(sessions.name(), "sessions");
    /// # }
    /// ```
    ///
    /// If you give several caches the same name, they share their metrics. Defaults to `cache`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Runs the sweeper, the background refreshes and the callbacks of [`on_expired`](Cache::on_expired) on a thread of
    /// this crate, in place of the current Tokio runtime. So you can build the cache anywhere: in a `static`, in a
    /// constructor that is not async, in a program without a runtime.
    ///
    /// ```
    /// use std::{sync::LazyLock, time::Duration};
    /// use fleeting::Cache;
    ///
    /// static SESSIONS: LazyLock<Cache<String, u64>> = LazyLock::new(|| {
    ///     Cache::builder().max_entries(10_000).background_thread().build()
    /// });
    ///
    /// fn main() {
    ///     // From code that is not async:
    ///     SESSIONS.sync().set_ex("ada".to_owned(), 42, Duration::from_secs(30));
    ///     assert_eq!(SESSIONS.sync().get("ada"), Some(42));
    /// }
    /// ```
    ///
    /// All caches and limiters that you build like this share one thread. The first of them starts it, and it ends some
    /// seconds after the last one is gone. It is a `current_thread` runtime with a timer, so your callbacks and loaders
    /// must not block it: they would delay the sweepers of all those caches. Tasks that need I/O of Tokio belong on a
    /// runtime of yours.
    ///
    /// The cache outlives every runtime. Its clock is real time: `tokio::time::pause` does not stop it. Async methods
    /// work on any runtime, and on executors other than Tokio's.
    ///
    /// [`build`](Builder::build) panics if the operating system cannot start the thread.
    #[doc(alias = "without a runtime")]
    #[doc(alias = "static")]
    #[doc(alias = "block_on")]
    pub fn background_thread(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Allows visitors of the [dashboard](crate::dashboard()) to look up the TTL of a key of this cache (feature
    /// `dashboard`).
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let sessions: Cache<u64, String> =
    ///     Cache::builder().name("sessions").inspect(|text| text.parse().ok()).build();
    /// # }
    /// ```
    ///
    /// `parse_key` converts the search text to a key, or returns `None` if the text is not a valid key. Values are
    /// never shown. The closure must not own a handle to the cache, which would keep the cache alive forever. By
    /// default, keys cannot be looked up.
    #[cfg(feature = "dashboard")]
    #[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
    pub fn inspect(
        mut self,
        parse_key: impl Fn(&str) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.inspect = Some(Arc::new(parse_key));
        self
    }
}

impl<K, V, S> Builder<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Creates the cache and starts its sweeper on the current Tokio runtime, or on the
    /// [background thread](Builder::background_thread).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let answers = Cache::builder()
    ///     .max_entries(10_000)
    ///     .time_to_live(Duration::from_secs(300))
    ///     .build();
    /// answers.set("localhost", [127, 0, 0, 1]).await;
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, unless the cache runs on the background thread. Panics on a runtime without a
    /// time driver (`enable_time`), unless the sweep is [manual](Sweep::manual).
    pub fn build(mut self) -> Cache<K, V, S> {
        // One generator for everything random, so that a seed makes the whole cache reproducible.
        let mut rng = match self.sweep.seed {
            Some(seed) => SmallRng::seed_from_u64(seed),
            None => rand::make_rng(),
        };
        let settings = self.settings;
        #[cfg(feature = "dashboard")]
        let inspect = self.inspect.take();
        let hook = self.refresh_error_hook.take();
        let freshness_policy = Arc::new(FreshnessPolicy::new(settings, rng.random(), hook));
        let shared = self.start_sweeper(&mut rng);
        #[cfg(feature = "dashboard")]
        if let Some(inspect) = inspect {
            // The state was just created, so the cell is empty.
            let _ = shared.inspect.set(inspect);
        }
        #[cfg(feature = "metrics")]
        super::metrics::register_cache(&shared, &freshness_policy.loads);
        Cache { inner: SyncCache { freshness_policy, shared } }
    }

    fn shard_count(&self) -> usize {
        match self.bound {
            ConfiguredBound::Entries(entries) => shards_by_entries(entries, self.shards),
            ConfiguredBound::Weight(..) => shards_by_weight(self.shards),
            ConfiguredBound::None => self.shards.unwrap_or_else(default_shards),
        }
    }

    /// Creates the state that all handles share, and starts its sweeper.
    fn start_sweeper(self, rng: &mut SmallRng) -> Arc<SharedState<K, V, S>> {
        let store = Store::new(self.shard_count(), self.initial_capacity, self.hasher);
        let seed = || rng.random();
        let store = match &self.bound {
            ConfiguredBound::None => store,
            ConfiguredBound::Entries(entries) => store.evicting(*entries as u64, None, seed),
            ConfiguredBound::Weight(weight, weigher) => {
                store.evicting(*weight, Some(weigher.clone()), seed)
            }
        };
        let store = store.with_stale_window(self.settings.stale_window());
        let store = match self.settings.time_to_idle {
            Some(idle) => store.with_time_to_idle(idle),
            None => store,
        };
        let mut shared = SharedState::new(
            store,
            self.causes,
            self.event_capacity,
            self.sweep,
            self.name,
            self.in_background,
        );
        if self.settings.keeps_failed_loads() {
            let max = match self.bound {
                ConfiguredBound::None => usize::MAX,
                ConfiguredBound::Entries(entries) => entries,
                // A failure has no weight.
                ConfiguredBound::Weight(..) => failed_loads::DEFAULT_MAX,
            };
            shared = shared.with_failed_loads(self.settings.negative_ttl, max);
        }
        sweeper::start(shared)
    }
}

impl<K, V, S> fmt::Debug for Builder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .field("sweep", &self.sweep)
            .field("shards", &self.shards)
            .field("initial_capacity", &self.initial_capacity)
            .field("bound", &self.bound)
            .field("event_capacity", &self.event_capacity)
            .finish_non_exhaustive()
    }
}
