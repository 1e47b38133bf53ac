//! How a [`Cache`] is set up: the settings and their defaults.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    super::{Client, Error, Format},
    Cache,
    commands::Commands,
    state::CacheState,
};

/// Sets up a [`Cache`]. Made by [`Cache::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct CacheBuilder<K, V> {
    client: Client,
    name: String,
    time_to_live: Option<Duration>,
    format: Format,
    retention: Option<Duration>,
    event_capacity: usize,
    lease: Duration,
    poll_every: Duration,
    stale: Duration,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Cache<K, V> {
    /// The cache of that name, without a default TTL and without events.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that can't be part of a key.
    pub fn new(client: &Client, name: &str) -> Result<Self, Error> {
        Self::builder(client, name).build()
    }

    /// Sets up a cache.
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
            time_to_live: None,
            format: Format::default(),
            retention: None,
            event_capacity: 1_024,
            lease: Duration::from_secs(10),
            poll_every: Duration::from_millis(100),
            stale: Duration::ZERO,
            types: PhantomData,
        }
    }
}

impl<K, V> CacheBuilder<K, V> {
    /// The TTL that [`Cache::set`] gives. Defaults to none: what is set lives until it is removed.
    pub fn time_to_live(mut self, ttl: Duration) -> Self {
        self.time_to_live = Some(ttl);
        self
    }

    /// How values are written, the same in all processes that share the name. Defaults to [`Format::Json`].
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Tells what expires to [`events`](Cache::events), [`events_lossless`](Cache::events_lossless) and
    /// [`on_expired`](Cache::on_expired). Defaults to no events, and to plain commands.
    ///
    /// An expiration waits for its subscribers at most `retention` long: an outage of all of them that is
    /// longer loses events, and for so long what died and was not told of takes the server's memory. Then it
    /// leaves by itself, an eighth of that later at the latest. What stays are the names of the groups.
    ///
    /// Redis' own notifications are not used: they come minutes late or never, and without the value. Here
    /// the deadlines of a shard are a sorted set beside its records, and the value of what has one is there a second time,
    /// as the first leaves with the deadline. Subscribers look [again and again](CacheBuilder::poll_every) whether something
    /// is due. It is moved to a stream, with its value, by whoever comes first: a subscriber, or who writes to the key.
    ///
    /// All processes that share a name must have events, or none: what those without them write is told of to nobody, and
    /// what they remove may be told of as expired. So may be what other programs delete, or the server evicts: it should
    /// not (`maxmemory-policy noeviction`).
    pub fn events(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// How many events a subscriber of [`Cache::events`] may fall behind in this process before it misses
    /// some. Defaults to 1,024.
    ///
    /// # Panics
    ///
    /// Where `events` is 0.
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.event_capacity = events;
        self
    }

    /// How long after a process has died others take over from it: the events of a [group](Cache::events_lossless), and
    /// what it was [loading](Cache::get_or_set_with). The same in all processes that share the name. Defaults to 10 s.
    ///
    /// Who lives renews it in time, so what takes longer keeps its lease.
    ///
    /// # Panics
    ///
    /// Where `lease` is less than a millisecond.
    pub fn lease(mut self, lease: Duration) -> Self {
        assert!(lease >= Duration::from_millis(1), "lease must be at least 1 ms, got {lease:?}");
        self.lease = lease;
        self
    }

    /// How often a subscriber looks for what is due: the bound of the lag while it keeps up, with two
    /// round trips to the server. Each look is one `MGET` of 32 small keys (in a cluster, 16 of two), and a script for each of 16 shards in which
    /// something is to be had; where nothing is, less than two scripts a second. Defaults to 100 ms.
    ///
    /// # Panics
    ///
    /// Where `pause` is zero.
    pub fn poll_every(mut self, pause: Duration) -> Self {
        assert!(!pause.is_zero(), "poll_every must be above zero, got {pause:?}");
        self.poll_every = pause;
        self
    }

    /// How long after the end of a loaded value [`get_or_set_with`](Cache::get_or_set_with) and its like may still return
    /// it, while one process in the fleet loads it anew in the background. Defaults to zero: a dead value is never
    /// returned.
    ///
    /// The server keeps such a value once more beside it, until then; each verb that writes is a script. All processes that
    /// share a name must have this, or none. What [`set`](Cache::set) and its like have put is never stale: they, `update`,
    /// a new TTL, `remove` and `clear` end the staleness of what was there. A refresh that fails is tried again no sooner
    /// than a second later, by whatever process. With [events](CacheBuilder::events), a value is told of when it dies.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.stale = window;
        self
    }

    /// Makes the cache. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that can't be part of a key.
    pub fn build(self) -> Result<Cache<K, V>, Error> {
        let commands =
            Arc::new(Commands::new(&self.client, &self.name, self.retention, self.stale)?);
        let counters = Arc::default();
        #[cfg(feature = "metrics")]
        super::metrics::follow(&self.name, &counters);
        let state = CacheState {
            name: self.name,
            commands,
            format: self.format,
            time_to_live: self.time_to_live,
            event_capacity: self.event_capacity,
            lease: self.lease,
            poll_every: self.poll_every,
            counters,
            flights: Arc::default(),
            ring: Arc::new(Mutex::new(None)),
            stop: watch::Sender::new(false),
        };
        Ok(Cache { state: Arc::new(state) })
    }
}

impl<K, V> fmt::Debug for CacheBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheBuilder")
            .field("name", &self.name)
            .field("time_to_live", &self.time_to_live)
            .field("format", &self.format)
            .field("events", &self.retention)
            .field("event_capacity", &self.event_capacity)
            .field("lease", &self.lease)
            .field("poll_every", &self.poll_every)
            .field("stale_while_revalidate", &self.stale)
            .finish_non_exhaustive()
    }
}
