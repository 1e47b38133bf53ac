//! How a cache is set up.

mod freshness;

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use super::{
    Cache,
    bounds::Bound,
    failures::Failures,
    freshness_policy::{FreshnessPolicy, Settings},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

#[cfg(feature = "dashboard")]
use crate::engine::state::Inspect;
use crate::engine::{
    event::Cause,
    hasher::DefaultHasher,
    shards::{checked_shards, default_shards},
    state::SharedState,
    store::Store,
    sweeper::{self, Sweep},
};

/// How many entries a shard has to choose from at least, where one leaves for another.
const ENTRIES_OF_A_SHARD: usize = 64;

/// How many shards a cache has that is bounded by weight, as nobody knows how few its entries may be.
const SHARDS_BY_WEIGHT: usize = 16;

/// How many failures are kept in a cache that is bounded by weight, as they have none.
const FAILURES_BY_WEIGHT: usize = 10_000;

/// Sets up a [`Cache`]. Made by [`Cache::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<K, V, S = DefaultHasher> {
    settings: Settings,
    sweep: Sweep,
    /// None: as many as suit the bound.
    shards: Option<usize>,
    initial_capacity: usize,
    hasher: S,
    event_capacity: usize,
    causes: u8,
    name: String,
    bound: Bound<K, V>,
    #[cfg(feature = "dashboard")]
    inspect: Option<Inspect<K>>,
}

impl<K, V> Builder<K, V> {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            sweep: Sweep::default(),
            shards: None,
            initial_capacity: 0,
            hasher: DefaultHasher::default(),
            event_capacity: 1_024,
            causes: Cause::Expired.bit() | Cause::Evicted.bit(),
            name: "cache".to_owned(),
            bound: Bound::None,
            #[cfg(feature = "dashboard")]
            inspect: None,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// The TTL that [`Cache::set`] gives. Defaults to none: what is set lives until it is removed.
    pub fn time_to_live(mut self, ttl: Duration) -> Self {
        self.settings.time_to_live = Some(ttl);
        self
    }

    /// How dead values are found. Defaults to [`Sweep::default`]: at most 100 ms of staleness.
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// How many parts the cache has, each with a lock of its own; rounded up to a power of two, and to 2
    /// at least. Defaults to four for each core, 64 at least; to fewer where
    /// [`max_entries`](Builder::max_entries) is small, as each part chooses by itself whom to evict.
    ///
    /// # Panics
    ///
    /// Where `shards` is 0 or above 65,536.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(checked_shards(shards).max(2));
        self
    }

    /// For how many entries memory is taken at once and never given back. Defaults to 0.
    ///
    /// [`build`](Builder::build) panics, or ends the process, where there is not so much memory.
    pub fn initial_capacity(mut self, entries: usize) -> Self {
        self.initial_capacity = entries;
        self
    }

    /// What hashes the keys. Defaults to foldhash, which is fast and seeded for each cache, but only
    /// partly resists chosen collisions: where an attacker chooses the keys, take
    /// [`std::hash::RandomState`].
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
            bound: self.bound,
            #[cfg(feature = "dashboard")]
            inspect: self.inspect,
        }
    }

    /// How many events a subscriber of [`Cache::events`] may fall behind before it misses some.
    /// Defaults to 1,024.
    ///
    /// # Panics
    ///
    /// Where `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.event_capacity = events;
        self
    }

    /// Which departures are sent as events. Defaults to [`Cause::Expired`] and [`Cause::Evicted`].
    pub fn publish(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes = Cause::bits(causes);
        self
    }

    /// How many entries there may be. Where one more comes, another leaves for it, as [`Cause::Evicted`]: one that
    /// was seldom or long ago asked for. Defaults to no bound.
    ///
    /// The bound is hard: when a verb that wrote has returned, there are no more; and meanwhile at most one more for
    /// each task that writes. It is one bound for all shards: nothing leaves as long as there is room anywhere. What
    /// was set is there for the next `get`. What is dead leaves first, as [`Cause::Expired`]. What was dead when it
    /// was set takes nobody's place.
    ///
    /// A write at the bound costs its writer a constant amount of work. There is no housekeeping to run.
    ///
    /// With a seeded [`hasher`](Builder::hasher) and [`Sweep::seed`] the same calls lead to the same evictions.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache = Cache::builder().max_entries(100).build();
    /// for n in 0..1_000 {
    ///     cache.set(n, "value").await;
    ///     assert!(cache.contains_key(&n).await);
    /// }
    /// assert_eq!(cache.len(), 100);
    /// assert_eq!(cache.stats().evicted, 900);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Where `entries` is 0, and after [`max_weight`](Builder::max_weight): a cache has one bound.
    pub fn max_entries(mut self, entries: usize) -> Self {
        assert!(entries > 0, "max_entries must be at least 1, got {entries}");
        if let Bound::Weight(weight, _) = self.bound {
            panic!(
                "max_entries({entries}): this cache has max_weight({weight}), and can't have both"
            );
        }
        self.bound = Bound::Entries(entries);
        self
    }

    /// How much all entries may weigh together; else as [`max_entries`](Builder::max_entries).
    ///
    /// `weigher` says what an entry weighs, in a unit of your choice, such as bytes. It is called once for each value
    /// that is written, before any lock is taken; and after [`Cache::update`], under the lock that its closure ran
    /// under. An entry that weighs 0 never leaves for another. One that weighs more than `weight` leaves at once, as
    /// [`Cause::Evicted`], and what it would have replaced leaves too. For one that is heavy as many light ones leave
    /// as it takes.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let weigher = |key: &String, page: &String| (key.len() + page.len()) as u32;
    /// let pages = Cache::builder().max_weight(1_000, weigher).build();
    /// for n in 0..100 {
    ///     pages.set(format!("/page/{n:03}"), "x".repeat(91)).await;
    ///     assert!(pages.weight() <= 1_000);
    /// }
    /// assert_eq!(pages.len(), 10);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Where `weight` is 0, and after [`max_entries`](Builder::max_entries): a cache has one bound.
    pub fn max_weight(
        mut self,
        weight: u64,
        weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static,
    ) -> Self {
        assert!(weight > 0, "max_weight must be at least 1, got {weight}");
        if let Bound::Entries(entries) = self.bound {
            panic!(
                "max_weight({weight}): this cache has max_entries({entries}), and can't have both"
            );
        }
        self.bound = Bound::Weight(weight, Arc::new(weigher));
        self
    }

    /// The name that tracing and [metrics](crate::guide::metrics) show; with the latter, caches of one name are one.
    /// Defaults to `cache`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Lets who sees the [dashboard](crate::dashboard()) search this cache for a key, and be told how long its value has
    /// still to live (feature `dashboard`). Values are never shown. `key` says which key a text stands for, or `None`
    /// where it stands for none; it runs for each search, and must not hold the cache itself, which would never end. Defaults to no such search.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let sessions: Cache<u64, String> =
    ///     Cache::builder().name("sessions").inspect(|text| text.parse().ok()).build();
    /// # }
    /// ```
    #[cfg(feature = "dashboard")]
    #[cfg_attr(docsrs, doc(cfg(feature = "dashboard")))]
    pub fn inspect(mut self, key: impl Fn(&str) -> Option<K> + Send + Sync + 'static) -> Self {
        self.inspect = Some(Arc::new(key));
        self
    }
}

impl<K, V, S> Builder<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Makes the cache and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
    #[cfg_attr(not(feature = "dashboard"), allow(unused_mut))]
    pub fn build(mut self) -> Cache<K, V, S> {
        let mut random = match self.sweep.seed {
            Some(seed) => SmallRng::seed_from_u64(seed),
            None => rand::make_rng(),
        };
        let settings = self.settings;
        #[cfg(feature = "dashboard")]
        let inspect = self.inspect.take();
        let may_fail = settings.negative_ttl.is_some()
            || settings.refresh_ahead > 0.0
            || settings.stale_while_revalidate > Duration::ZERO;
        let failures = may_fail.then(|| {
            let bound = match self.bound {
                Bound::None => Bound::None,
                Bound::Entries(entries) => Bound::Entries(entries),
                Bound::Weight(..) => Bound::Entries(FAILURES_BY_WEIGHT),
            };
            let failures = Builder {
                hasher: self.hasher.clone(),
                sweep: self.sweep,
                bound,
                name: format!("{} failures", self.name),
                ..Builder::<K, _>::new().hasher(self.hasher.clone())
            };
            Failures::new(failures.start(&mut random), settings.negative_ttl)
        });
        let freshness_policy = Arc::new(FreshnessPolicy::new(settings, random.random(), failures));
        let shared = self.start(&mut random);
        #[cfg(feature = "dashboard")]
        if let Some(inspect) = inspect {
            // It is new, and nobody else has it.
            let _ = shared.inspect.set(inspect);
        }
        #[cfg(feature = "metrics")]
        super::metrics::follow(&shared, &freshness_policy.loads);
        Cache { freshness_policy, shared }
    }

    fn start(self, random: &mut SmallRng) -> Arc<SharedState<K, V, S>> {
        let shards = self.shards.unwrap_or_else(|| match self.bound {
            Bound::None => default_shards(),
            Bound::Entries(entries) => {
                (entries / ENTRIES_OF_A_SHARD).next_power_of_two().clamp(2, default_shards())
            }
            Bound::Weight(..) => default_shards().min(SHARDS_BY_WEIGHT),
        });
        let store = Store::new(shards, self.initial_capacity, self.hasher);
        let seed = || random.random();
        let store = match &self.bound {
            Bound::None => store,
            Bound::Entries(entries) => store.evicting(*entries as u64, None, seed),
            Bound::Weight(weight, weigher) => store.evicting(*weight, Some(weigher.clone()), seed),
        };
        let store = store.with_stale_window(self.settings.stale_window());
        let store = match self.settings.time_to_idle {
            Some(idle) => store.with_time_to_idle(idle),
            None => store,
        };
        let shared =
            SharedState::new(store, self.causes, self.event_capacity, self.sweep, self.name);
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
