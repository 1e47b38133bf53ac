//! Builder of a [`Cache`]: its settings and their defaults.

use std::{
    fmt::{self, Debug},
    marker::PhantomData,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use rand::{RngExt, rngs::SmallRng};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    super::{
        Client, Error, Format,
        client::{Invalidations, MAX_DURATION},
        codec::decode_key,
        keyspace::SHARDS,
    },
    Cache,
    cache_state::CacheState,
    commands::Commands,
    failures::Failures,
    near::{MakeNearCache, NearCache, NearSettings},
    stats::{Counters, NearCounters},
};
use crate::cache::{FreshnessPolicy, FreshnessSettings, RefreshErrorHook};

/// Maximum number of events that this process buffers for its subscribers.
const MAX_EVENT_CAPACITY: usize = 1 << 20;

/// Maximum number of shards. Methods that visit all of them send one command or more to each.
const MAX_SHARDS: usize = 1_024;

/// Builder of a [`Cache`]: TTL, format, events, near cache. Returned by [`Cache::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::redis::{Cache, Client};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let users: Cache<u64, String> = Cache::builder(&client, "users")
///     .time_to_live(Duration::from_secs(60))
///     .near(10_000)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct CacheBuilder<K, V> {
    client: Client,
    name: String,
    settings: FreshnessSettings,
    refresh_error_hook: Option<RefreshErrorHook<Vec<u8>>>,
    format: Format,
    retention: Option<Duration>,
    event_capacity: usize,
    lease: Duration,
    poll_every: Duration,
    stale: Duration,
    near: Option<(usize, MakeNearCache<V>)>,
    near_max_age: Duration,
    shards: Option<u16>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Cache<K, V> {
    /// Returns the cache named `name`, without a default TTL and without events.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// let client = Client::connect("redis://127.0.0.1:6379").await?;
    /// let sessions: Cache<String, u64> = Cache::new(&client, "sessions")?;
    /// sessions.set_ex("token".into(), 7, Duration::from_secs(1_800)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn new(client: &Client, name: &str) -> Result<Self, Error> {
        Self::builder(client, name).build()
    }

    /// Returns a builder for the cache named `name`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::{Cache, Client, Format};
    ///
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let sessions: Cache<String, Vec<u8>> = Cache::builder(&client, "sessions")
    ///     .time_to_live(Duration::from_secs(1_800))
    ///     .format(Format::Raw)
    ///     .events(Duration::from_secs(3_600))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: &Client, name: &str) -> CacheBuilder<K, V> {
        CacheBuilder {
            client: client.clone(),
            name: name.to_owned(),
            settings: FreshnessSettings::default(),
            refresh_error_hook: None,
            format: Format::default(),
            retention: None,
            event_capacity: 1_024,
            lease: Duration::from_secs(10),
            poll_every: Duration::from_millis(100),
            stale: Duration::ZERO,
            near: None,
            near_max_age: Duration::from_secs(1),
            shards: None,
            types: PhantomData,
        }
    }
}

impl<K, V> CacheBuilder<K, V> {
    /// Sets the default TTL. It applies to [`Cache::set`], and to other methods that write a value if their `ttl` is
    /// `None` or if they have no such argument. Defaults to none: values are persistent.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let sessions: Cache<String, u64> = Cache::builder(&client, "sessions")
    ///     .time_to_live(Duration::from_secs(1_800))
    ///     .build()?;
    /// sessions.set("token".into(), 7).await?; // for half an hour
    /// # Ok(())
    /// # }
    /// ```
    pub fn time_to_live(mut self, ttl: Duration) -> Self {
        self.settings.time_to_live = Some(ttl);
        self
    }

    /// Sets the format of the values. All processes that share the name must use the same. Defaults to
    /// [`Format::Json`].
    ///
    /// ```no_run
    /// # use fleeting::redis::{Cache, Client, Format};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Smaller than JSON, for values that only Rust programs read.
    /// let prices: Cache<String, Vec<f64>> =
    ///     Cache::builder(&client, "prices").format(Format::MessagePack).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Publishes expirations to [`events`](Cache::events), [`events_lossless`](Cache::events_lossless) and
    /// [`on_expired`](Cache::on_expired). By default, a cache has no events and uses plain commands.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // A subscriber that is down for less than an hour misses nothing.
    /// let carts: Cache<String, u32> =
    ///     Cache::builder(&client, "carts").events(Duration::from_secs(3_600)).build()?;
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The server removes events that are older than `retention`, about a hundred of a shard at a time. The last ones
    /// of a shard remain until it has had no event for `retention`. Younger events are kept until all
    /// [groups](Cache::events_lossless) have acknowledged them, and for at least a minute for the subscribers of
    /// [`events`](Cache::events), whose positions the server does not store. If no subscriber reads for longer than
    /// `retention`, events are lost. Subscribers receive their number as [`Error::Missed`] or
    /// [`Lagged`](crate::Lagged).
    ///
    /// An expired value whose event was not published takes memory on the server until its retention has passed. After
    /// that, its key stays in the index of its shard until a write to the shard or a subscriber removes it. Without
    /// groups, the index expires an eighth of `retention` after the retention of its latest deadline. It does not
    /// expire if there are groups, because it is needed to count lost events: [remove](Cache::remove_group) groups that
    /// are not used any more. After that, only the names of the groups and a few counters remain. The counters expire a
    /// day after the retention if there are no groups and no subscribers.
    ///
    /// Redis' own keyspace notifications are not used: they arrive minutes late or never, and without the value.
    /// Instead, the deadlines of each shard are in a sorted set next to its values. A value with a deadline is stored
    /// twice, because Redis deletes the first copy at the deadline. Subscribers
    /// [poll](CacheBuilder::poll_every) for expired entries. The first subscriber, or the first writer to the key,
    /// moves the entry and its value to a stream.
    ///
    /// Either all processes that share a name must enable events, or none. Values written by a process without events
    /// expire without an event, and values that it removes may be reported as expired. The same applies to values that
    /// other programs delete or that the server evicts, so your server should not evict (`maxmemory-policy
    /// noeviction`). If its settings permit evictions, the first subscription logs a warning, unless the Redis user is
    /// not permitted to run `INFO`.
    pub fn events(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Sets the number of events that a subscriber of [`Cache::events`] may fall behind in this process before it
    /// misses some, at most 1,048,576: the first subscription allocates memory for all of them. Defaults to 1,024.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // At the end of a sale, 100,000 offers expire at once.
    /// let offers: Cache<u64, u32> = Cache::builder(&client, "offers")
    ///     .events(Duration::from_secs(3_600))
    ///     .event_capacity(100_000)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.event_capacity = events.min(MAX_EVENT_CAPACITY);
        self
    }

    /// Sets the lease: the time after which other processes take over the events of a [group](Cache::events_lossless)
    /// and the [loads](Cache::get_or_set_with) of a crashed process. All processes that share the name must use the
    /// same. Defaults to 10 s.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // After a crash, another process loads the value within two seconds.
    /// let prices: Cache<String, u32> =
    ///     Cache::builder(&client, "prices").lease(Duration::from_secs(2)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A running process renews its leases in time, so that longer work keeps its lease.
    ///
    /// # Panics
    ///
    /// Panics if `lease` is less than a millisecond.
    pub fn lease(mut self, lease: Duration) -> Self {
        assert!(lease >= Duration::from_millis(1), "lease must be at least 1 ms, got {lease:?}");
        self.lease = lease.min(MAX_DURATION);
        self
    }

    /// Sets the pause between two polls of a subscriber. The lag of a subscriber that keeps up is at most this pause
    /// and two round trips to the server. Defaults to 100 ms.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Reminders may be a second late, and the server has less to do.
    /// let carts: Cache<String, u32> = Cache::builder(&client, "carts")
    ///     .events(Duration::from_secs(3_600))
    ///     .poll_every(Duration::from_secs(1))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With 16 shards, a poll is one `MGET` of 32 small keys (in a cluster, 16 of two keys), and one script for each
    /// shard that has something to read. An idle subscriber sends less than two scripts per second. With another number
    /// of [shards](CacheBuilder::shards), these numbers are in proportion to it.
    ///
    /// # Panics
    ///
    /// Panics if `pause` is zero.
    pub fn poll_every(mut self, pause: Duration) -> Self {
        assert!(!pause.is_zero(), "poll_every must be above zero, got {pause:?}");
        self.poll_every = pause.min(MAX_DURATION);
        self
    }

    /// Sets the time after expiry during which [`get_or_set_with`](Cache::get_or_set_with) and the other loader methods
    /// may still return a loaded value, while one process loads it again in the background. Defaults to zero: an
    /// expired value is never returned.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// # let render = async || "Welcome".to_owned();
    /// // For a minute after its expiry, visitors get the old page while one process renders it again.
    /// let pages: Cache<String, String> = Cache::builder(&client, "pages")
    ///     .stale_while_revalidate(Duration::from_secs(60))
    ///     .build()?;
    /// let page = pages.get_or_set_with("/", Duration::from_secs(10), render).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The server keeps a second copy of such a value until the window ends, and every method that writes becomes a
    /// script. Either all processes that share a name must set this, or none. Only loaded values become stale, not
    /// values written by [`set`](Cache::set) and its variants. After any write to a key (by these methods, `update`,
    /// `remove`, `clear`, or a method that sets its TTL), its previous value is never returned again. A failed refresh
    /// is retried after a second at the earliest, by any process. With [events](CacheBuilder::events), the event is
    /// published when the value expires.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.stale = window;
        self
    }

    /// Sets the maximum share by which a TTL is shortened at random, at least 0 and below 1.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // A thousand values are loaded at the start. They expire over six minutes, not at the same moment.
    /// let prices: Cache<u64, u32> = Cache::builder(&client, "prices")
    ///     .time_to_live(Duration::from_secs(3_600))
    ///     .jitter(0.1)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Jitter prevents values that were written together from expiring, and being loaded again, at the same time. It
    /// applies to values that are written or loaded by this process, but not to [`Cache::expire`],
    /// [`get_ex`](Cache::get_ex) and the like. Defaults to 0.
    ///
    /// # Panics
    ///
    /// Panics if `share` is NaN, negative, or at least 1.
    pub fn jitter(mut self, share: f64) -> Self {
        self.settings.set_jitter(share);
        self
    }

    /// Sets the time for which this process keeps the error of a [loader](Cache::get_or_try_set_with) for its key.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Each process searches for a user who does not exist every five seconds at most.
    /// let users: Cache<u64, String> =
    ///     Cache::builder(&client, "users").negative_ttl(Duration::from_secs(5)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// While an error is kept, calls with the same error type return it without running their loaders, unless the key
    /// has a live value. A write to the key or its removal by this process discards the error. Another process runs its
    /// own loader, and a removal by it does not discard the error. At most 10,000 errors are kept.
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

    /// Makes the loader methods refresh a value in the background before it expires, with a probability that increases
    /// toward its deadline.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // The front page is requested all the time: visitors rarely wait until it is rendered again.
    /// let pages: Cache<String, String> = Cache::builder(&client, "pages")
    ///     .time_to_live(Duration::from_secs(10))
    ///     .refresh_ahead(1.0)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A popular key is then usually reloaded before it expires, so that no caller has to wait for the load. The time
    /// of the refresh depends on `beta` and on the average duration of recent loads in this process (XFetch: Vattani et
    /// al., "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015). A `beta` of 1 suits keys that you read many
    /// times in the duration of a load; use 2 or 3 for keys that you read less often. Defaults to 0, which never
    /// refreshes ahead.
    ///
    /// One refresh of a key runs at a time in all processes, on the runtime of the call that started it. A write to the
    /// key during the refresh takes precedence over the loaded value. A refresh that fails, or takes more than a
    /// minute, is logged and reported to [`on_refresh_error`](CacheBuilder::on_refresh_error). This process tries again
    /// after a second at the earliest; with each further failure this delay doubles, up to a minute.
    ///
    /// Each hit of a loader method then reads the TTL too, in the same round trip, or in the process if it is answered
    /// [near](CacheBuilder::near).
    ///
    /// # Panics
    ///
    /// Panics if `beta` is NaN, infinite or negative.
    pub fn refresh_ahead(mut self, beta: f64) -> Self {
        self.settings.set_refresh_ahead(beta);
        self
    }

    /// Calls `hook` with the key and the error of each background refresh of this process that fails.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let rates: Cache<String, u32> = Cache::builder(&client, "rates")
    ///     .stale_while_revalidate(Duration::from_secs(600))
    ///     .on_refresh_error(|currency, error| eprintln!("the rate of {currency} is old: {error:?}"))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// While [`stale_while_revalidate`](CacheBuilder::stale_while_revalidate) or
    /// [`refresh_ahead`](CacheBuilder::refresh_ahead) hides the outage of a source from your callers, this hook reports
    /// it to you: count the failures, or raise an alarm. The error is that of the loader, or an [`Error`] if its value
    /// could not be encoded. If the loader panicked or took more than a minute, it is a message that names the cause.
    /// Each failure is also logged as `background refresh failed`, with `cache` and `error`.
    ///
    /// The hook is not called for loads that a caller waits for, nor if the last handle of the cache was dropped during
    /// the refresh. It runs on the task that refreshed and under no lock; it should not block. A panic in it is logged.
    /// The cache owns the hook, so the hook must not own a handle to this cache, which would keep the cache alive
    /// forever.
    ///
    /// Defaults to none.
    pub fn on_refresh_error(mut self, hook: impl Fn(&K, &dyn Debug) + Send + Sync + 'static) -> Self
    where
        K: DeserializeOwned + 'static,
    {
        let hook_of_encoded = move |key: &Vec<u8>, error: &dyn Debug| {
            // It was encoded from a key of this type.
            if let Ok(key) = decode_key(key, Vec::new) {
                hook(&key, error);
            }
        };
        self.refresh_error_hook = Some(Box::new(hook_of_encoded));
        self
    }

    /// Sets the maximum age of a value in the [near cache](CacheBuilder::near) under all conditions, counted from
    /// before the request was sent. Defaults to one second. With zero, nothing is cached in the process, but concurrent
    /// callers still share a request.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // No cached price is older than 100 ms, even while the network drops packets.
    /// let prices: Cache<String, u64> = Cache::builder(&client, "prices")
    ///     .near(10_000)
    ///     .near_max_age(Duration::from_millis(100))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// In normal operation this setting matters little, because the server reports changes. It bounds the age of cached
    /// values if a cluster moves a slot, or if a network drops packets without closing the connection. In the second
    /// case, the connection is probed every second, so that even with a higher setting no cached value is used for
    /// longer than about 1.5 s.
    ///
    /// A call that shares the request of an earlier one gets a value that may be older than the call, at most by the
    /// time for which the request was in flight.
    pub fn near_max_age(mut self, max_age: Duration) -> Self {
        self.near_max_age = max_age;
        self
    }

    /// Sets the number of shards, 1 to 1,024. In a cluster, a cache is on at most that many nodes. Defaults to 16.
    ///
    /// ```no_run
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // In a cluster of 40 masters, each has about six of the shards.
    /// let pages: Cache<String, String> = Cache::builder(&client, "pages").shards(256).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The number is a part of the stored layout, so all processes that share a name must use the same. The server
    /// keeps it. If it has another, each call fails with [`Error::ShardCount`], which names both numbers.
    ///
    /// # The check
    ///
    /// A cache whose number was set, even to 16, reads the number on the server before its first command (one `GET`).
    /// If there is none, it examines a thousand keys of each server for values of this cache in other shards, as those
    /// of processes that set no number (`SCAN`), and then writes its own (`SET` with `NX`). Of several processes that
    /// do so at the same time, only those with the first number continue. In a cluster, the number is on one node: a
    /// new process needs that node for its first call.
    ///
    /// A cache whose number was not set has 16 shards. It writes no number. It sends its first command without waiting
    /// for the number on the server; once the reply shows another, all its calls fail. Until then, for about one round
    /// trip per process, it may have changed some of the values, and have written others that processes with the right
    /// number do not find. [`remove_tag`](Cache::remove_tag) and [`clear`](Cache::clear) wait for the number.
    ///
    /// The check has limits:
    /// - A cache that was checked once is not checked again. Previous releases check nothing, and use 16 shards.
    /// - If the cache is a small part of a large database, or empty, the sample may miss values of processes that set
    ///   no number, and a process with another number is accepted.
    /// - `FLUSHALL`, or an eviction, removes the number. Each new cache whose number was set writes it again,
    ///   unless the sample has values in other shards.
    ///
    /// So set the number in all programs before the first of them uses the name. To change it, use another name. Or
    /// stop all processes, [`clear`](Cache::clear) the cache with the old number, and remove the key
    /// `fleeting:cache1:{NAME:0}.shards`.
    ///
    /// # Cost
    ///
    /// Calls for one key cost the same with any number. Methods that visit all shards cost more, with `n` shards:
    ///
    /// | | commands |
    /// | --- | --- |
    /// | [`remove_tag`](Cache::remove_tag) | `2 n` small ones, half of them scripts |
    /// | [`clear`](Cache::clear) | `n` scripts, in addition to the scan |
    /// | [`groups`](Cache::groups), [`remove_group`](Cache::remove_group) | `n` scripts |
    /// | a new subscription | `2 n` scripts |
    /// | a poll without events | one `MGET` of `2 n` keys; in a cluster, `n` of two keys |
    /// | an idle subscriber, every ten seconds | `n` scripts |
    /// | [`get_many`](Cache::get_many), `set_many` and `remove_many` of 100 keys | up to 16 scripts with 16 shards, and up to 64 with 64 |
    ///
    /// # Panics
    ///
    /// Panics if `shards` is 0 or above 1,024.
    pub fn shards(mut self, shards: usize) -> Self {
        assert!(
            (1..=MAX_SHARDS).contains(&shards),
            "shards must be 1 to {MAX_SHARDS}, got {shards}"
        );
        self.shards = Some(shards as u16);
        self
    }

    /// Builds the cache. Sends nothing to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn build(self) -> Result<Cache<K, V>, Error> {
        let keyspace = self.client.cache_keyspace(&self.name, self.shards.unwrap_or(SHARDS))?;
        // Connections of its own: tracking applies to a whole connection, and all commands of the cache must be ordered
        // with its invalidations.
        let client = match self.near {
            Some((max_entries, _)) => {
                let invalidations = Invalidations::new(keyspace.clone(), max_entries);
                self.client.with_tracking(Arc::new(invalidations))
            }
            None => self.client,
        };
        let client = client.with_shard_check(&keyspace, self.shards.is_some());
        let commands = Arc::new(Commands::new(
            &client,
            keyspace,
            self.retention,
            self.stale,
            self.settings.needs_deadline(),
        ));
        let near = self.near.map(|(max_entries, make)| {
            let settings = NearSettings { max_entries, max_age: self.near_max_age };
            make(settings, commands.clone(), self.format, self.name.clone())
        });
        let counts = near.clone().map(|near| near as Arc<dyn NearCounters>);
        let counters = Arc::new(Counters::new(counts));
        let seed = rand::make_rng::<SmallRng>().random();
        let freshness = FreshnessPolicy::new(self.settings, seed, self.refresh_error_hook);
        // Not for a stale window, which is none of these settings here: the server delays the next refresh of a stale
        // value, for all processes.
        let keeps_failures = self.settings.keeps_failed_loads();
        #[cfg(feature = "metrics")]
        super::metrics::register_cache(&self.name, &counters);
        let state = CacheState {
            name: self.name,
            commands,
            format: self.format,
            freshness: Arc::new(freshness),
            failures: keeps_failures.then(|| Arc::new(Failures::new(self.settings.negative_ttl))),
            event_capacity: self.event_capacity,
            lease: self.lease,
            poll_every: self.poll_every,
            counters,
            flights: Arc::default(),
            near,
            ring: Arc::new(Mutex::new(None)),
            is_eviction_checked: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        };
        Ok(Cache { state: Arc::new(state) })
    }
}

impl<K, V: Clone + DeserializeOwned + Send + Sync + 'static> CacheBuilder<K, V> {
    /// Caches up to `max_entries` values in this process, while the server guarantees to report changes. By default, no
    /// values are cached.
    ///
    /// If a key is cached, `get`, `get_many`, `contains_key` and the loader methods are answered without a round trip.
    /// The values are stored in an embedded [`Cache`](crate::Cache). A missing value (`None`) is cached too. Callers
    /// that miss the same key concurrently share one request. All other methods still ask the server.
    ///
    /// # Guarantees
    ///
    /// **After a process has read or written a value of a key, no later call in this process returns an older value of
    /// that key. A missing value (`None`) counts as a value.** This holds across all clones of the handle and all
    /// tasks, even if a reply was lost, a call was dropped, or a connection was closed. (Another cache built with the
    /// same name counts as another process.)
    ///
    /// A change by another process or by the server (expiry, eviction) is visible as soon as the server has reported
    /// it, in normal operation within a few milliseconds. Under all conditions, no cached value is used for longer than
    /// [`near_max_age`](CacheBuilder::near_max_age), and no value is returned beyond its TTL.
    ///
    /// Three things are outside these guarantees. Values in their
    /// [stale window](CacheBuilder::stale_while_revalidate) are as stale as documented there. [`iter`](Cache::iter) is
    /// weakly consistent. And a failover to a replica that lacks the last writes brings back older values, which no
    /// client can detect.
    ///
    /// # How it works
    ///
    /// The cache has its own connections, one to each master, which carry all its commands in RESP3 with
    /// `CLIENT TRACKING ON BCAST PREFIX fleeting:cache1:{name:`. The server sends replies and invalidations in one
    /// order, so that a client that has a reply has received all earlier invalidations. The cached value of a key is
    /// also discarded if the process writes to the key, or receives newer information about it in another way. All
    /// cached values are discarded if a connection ends, becomes silent or is replaced, if a slot moves, or after
    /// `FLUSHALL`. Replies on the next connection are cached again.
    ///
    /// # Cost
    ///
    /// A miss is a `GET` and a `PTTL` in one round trip. The misses of a `get_many` are read together: one script reads
    /// up to a thousand keys or a mebibyte of values; in a cluster, one script per shard, four at a time. Values with
    /// [tags](Cache::set_tagged) are not cached.
    ///
    /// A process receives an invalidation for each changed key of the cache, even for keys that it does not cache. Keys
    /// that you write more often than you read therefore gain nothing. An idle connection is probed every second. The
    /// near cache takes the memory of up to `max_entries` values, chosen by the bounded embedded cache, and 48 to 64
    /// bytes for each.
    ///
    /// If the server cannot report changes (RESP2, or no permission for `CLIENT TRACKING`), nothing is cached, each
    /// read is a request, and a warning is logged once.
    ///
    /// ```no_run
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let prices: Cache<String, u64> = Cache::builder(&client, "prices").near(10_000).build()?;
    /// prices.get("tea").await?; // asks the server
    /// prices.get("tea").await?; // answered locally until the key is written
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `max_entries` is 0.
    pub fn near(mut self, max_entries: usize) -> Self {
        assert!(max_entries > 0, "near must be at least 1, got {max_entries}");
        self.near = Some((max_entries, NearCache::<V>::make));
        self
    }
}

impl<K, V> fmt::Debug for CacheBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheBuilder")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .field("format", &self.format)
            .field("events", &self.retention)
            .field("event_capacity", &self.event_capacity)
            .field("lease", &self.lease)
            .field("poll_every", &self.poll_every)
            .field("stale_while_revalidate", &self.stale)
            .field("near", &self.near.map(|(max_entries, _)| max_entries))
            .field("near_max_age", &self.near_max_age)
            .field("shards", &self.shards.unwrap_or(SHARDS))
            .finish_non_exhaustive()
    }
}
