//! How a [`Cache`] is set up: the settings and their defaults.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    super::{
        Client, Error, Format,
        client::{Invalidations, MAX_DURATION},
        keyspace::Kind,
    },
    Cache,
    commands::Commands,
    near::{Make, NearCache, Settings},
    state::CacheState,
    stats::{Counters, Counts},
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
    near: Option<(usize, Make<V>)>,
    near_max_age: Duration,
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
            near: None,
            near_max_age: Duration::from_secs(1),
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
        self.lease = lease.min(MAX_DURATION);
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
        self.poll_every = pause.min(MAX_DURATION);
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

    /// For how long an answer that is kept [near](CacheBuilder::near) may be used, whatever happens: counted from before its
    /// question was sent. Defaults to one second. Of zero nothing is kept, and callers still share a question.
    ///
    /// In peace it matters little, as changes are told of. It is what bounds staleness where a network goes silent without
    /// telling anybody (then the server is asked each second whether it is there, so that even with more than that
    /// nothing older than about 1.5 s is answered), and where a cluster's slot is moved.
    pub fn near_max_age(mut self, max_age: Duration) -> Self {
        self.near_max_age = max_age;
        self
    }

    /// Makes the cache. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that can't be part of a key.
    pub fn build(self) -> Result<Cache<K, V>, Error> {
        let client = match self.near {
            Some((max_entries, _)) => {
                let keyspace = self.client.keyspace(Kind::Cache, &self.name)?;
                self.client.with_tracking(Arc::new(Invalidations::new(keyspace, max_entries)))
            }
            None => self.client,
        };
        let commands = Arc::new(Commands::new(&client, &self.name, self.retention, self.stale)?);
        let near = self.near.map(|(max_entries, make)| {
            let settings = Settings { max_entries, max_age: self.near_max_age };
            make(settings, commands.clone(), self.format, self.name.clone())
        });
        let counts = near.clone().map(|near| near as Arc<dyn Counts>);
        let counters = Arc::new(Counters::new(counts));
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
            near,
            ring: Arc::new(Mutex::new(None)),
            stop: watch::Sender::new(false),
        };
        Ok(Cache { state: Arc::new(state) })
    }
}

impl<K, V: Clone + DeserializeOwned + Send + Sync + 'static> CacheBuilder<K, V> {
    /// Keeps up to `max_entries` answers in this process, for as long as the server promises to tell of changes. Defaults to
    /// none.
    ///
    /// `get`, `get_many`, `contains_key` and the verbs that load are answered here where the key is kept, which takes about as
    /// long as a `get` of the embedded [`Cache`](crate::Cache), which keeps them. That there is no value is kept too. Who
    /// misses the same key at the same time shares one question. All other verbs ask the server, as ever.
    ///
    /// # What it promises
    ///
    /// **No call returns a value of a key that is older than what this process had seen or written of it before the call
    /// began, `None` included**: over all clones of the handle and all tasks, also where an answer was lost, a call was
    /// dropped, or a connection was cut. (Another cache that is built with the same name is another process in this.)
    ///
    /// A change by another process, or by the server (what expires, or is evicted), is seen as soon as the server has told
    /// of it: in peace within some milliseconds. Whatever happens, nothing older than
    /// [`near_max_age`](CacheBuilder::near_max_age) is answered, and no value beyond the TTL that it had.
    ///
    /// What [`stale_while_revalidate`](CacheBuilder::stale_while_revalidate) lets a verb that loads return is as stale as it
    /// says, and [`iter`](Cache::iter) as weakly consistent. What a failover loses is lost here too: a replica that takes its master's place without the last writes has older
    /// values than were seen, and nobody can tell.
    ///
    /// # How
    ///
    /// The cache has connections of its own, one to each master, by which all of its verbs go, in RESP3 with `CLIENT TRACKING
    /// ON BCAST PREFIX fleeting:cache1:{name:`. A server answers and tells in one order: so whoever has an answer has
    /// been told of all that was changed before it. Whatever is learnt of a key in another way, or was sent about it, ends what
    /// is kept of it. A connection that ends, is silent, or is replaced, a slot that moves, `FLUSHALL`: nothing that was
    /// kept before is used any more, and what the next connection answers is kept again.
    ///
    /// # Costs
    ///
    /// A miss is a `GET` and a `PTTL` at once. What `get_many` does not find is asked for together: one script reads a
    /// thousand keys, or a mebibyte of values; in a cluster, those of one of 16 shards, four of them at a time. A process is told of each key
    /// of the cache that is changed, whether it keeps it or not: for what is written more often than it is read this is no
    /// gain. Where nothing else is asked, the server is asked each second for a sign of life. A process takes the memory of
    /// `max_entries` values, as the bounded cache chooses them, and 32 to 48 bytes for each.
    ///
    /// Where the server does not tell, nothing is kept, each read is a question, and a warning is logged once: in RESP2, or
    /// without the right to `CLIENT TRACKING`.
    ///
    /// ```no_run
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let prices: Cache<String, u64> = Cache::builder(&client, "prices").near(10_000).build()?;
    /// prices.get("tea").await?; // asks the server
    /// prices.get("tea").await?; // is answered here, until somebody writes to it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Where `max_entries` is 0.
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
            .field("time_to_live", &self.time_to_live)
            .field("format", &self.format)
            .field("events", &self.retention)
            .field("event_capacity", &self.event_capacity)
            .field("lease", &self.lease)
            .field("poll_every", &self.poll_every)
            .field("stale_while_revalidate", &self.stale)
            .field("near", &self.near.map(|(max_entries, _)| max_entries))
            .field("near_max_age", &self.near_max_age)
            .finish_non_exhaustive()
    }
}
