//! Values that are loaded where they are missing, once in the whole fleet: within a process by [`flights`](super::flights),
//! between processes by a [`lease`](super::lease).

use std::{borrow::Borrow, convert::Infallible, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{
    super::{Error, Format, codec::encode_key},
    Cache,
    expiry::Expiry,
    flights::{Seat, Told},
    lease::{Lease, Sought, peek},
    stats::Counters,
};
use crate::cache::TimeToLive;

/// Between two looks at a key that another process loads: the first pause, and the longest. It is a quarter of what was
/// waited for so far.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// A load that is about to begin. It keeps no cache alive.
struct Load {
    seat: Seat,
    lease: Lease,
    format: Format,
    counters: Arc<Counters>,
}

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// The live value of `key`; where there is none, what `loader` returns, which is put there to live for `ttl` from
    /// then on.
    ///
    /// One loader runs for a key, in all processes that share the cache, however many wait for it. The process whose loader
    /// runs has a lease on the key, which it renews. Where the call is dropped, or panics, it gives the lease back; where
    /// the process dies, the runtime of the call is shut down, or the server can't be reached, the lease ends after
    /// [`lease`](super::CacheBuilder::lease).
    /// Then another who waits goes on with its own loader.
    ///
    /// A hit costs what [`get`](Cache::get) does, a miss two round trips more. In each process one of those who wait for
    /// another process asks the server again and again: after 2 ms at first, then after a quarter of what it has waited so
    /// far, up to 100 ms.
    ///
    /// The `loader` is an `async move` closure that owns what it needs: with
    /// [`stale_while_revalidate`](super::CacheBuilder::stale_while_revalidate) it may go on after the call has returned, on
    /// the runtime of the call. `ttl` is a [`Duration`], or a closure that takes the value: see [`TimeToLive`].
    ///
    /// What is written to the key while it is being loaded (`set`, `remove`, `clear` and their like) wins over what is
    /// loaded: who has loaded it gets that, it is not put into the cache, and those who waited ask again. (One thing is
    /// missed: what was written with a TTL of a minute or more, and has died before the load is over.) So it is when the
    /// lease is lost, as by a server that was restarted without its data.
    ///
    /// A loader may call the cache, for other keys too. One that asks for its own key, in the same task, loads by
    /// itself, and nothing is put there; through another task, or a cache of the same name that is no clone of this one, it
    /// would wait for itself for ever. So do two loaders that wait for each other.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Those of every verb, and no loader runs: where the server is away, this is the caller's to see. All who wait in this
    /// process get the same. Where the server goes away while the loader runs, its caller gets what was loaded,
    /// which is not kept, is logged and counted as a [failed load](super::CacheStats::failed_loads); those who waited
    /// ask again, and get the error.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. A load that nobody waits for any more ends where it is.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f() -> Result<(), fleeting::redis::Error> {
    /// let client = Client::connect("redis://127.0.0.1:6379").await?;
    /// let users: Cache<u64, String> = Cache::new(&client, "users")?;
    /// let minute = Duration::from_secs(60);
    /// let name = users.get_or_set_with(&7, minute, async || "Ada".to_owned()).await?;
    /// assert_eq!(name, "Ada");
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_set_with<Q, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<V, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = V> + Send + 'static,
    {
        let key = encode_key(key);
        async move {
            let loader = async move || Ok::<_, Infallible>(loader().await);
            match self.get_or_load(key?, ttl, loader).await? {
                Ok(value) => Ok(value),
                Err(never) => match *never {},
            }
        }
    }

    /// As [`get_or_set_with`](Cache::get_or_set_with), with a loader that may fail: the outer `Result` is the server's, the
    /// inner one the loader's.
    ///
    /// All who wait in this process get the loader's error; other processes, and who waits for a loader whose error is of
    /// another type, go on with their own. It is not kept.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// As of [`get_or_set_with`](Cache::get_or_set_with), and within that what the loader returned.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    ///
    /// ```no_run
    /// use std::{io, time::Duration};
    /// use fleeting::redis::Cache;
    ///
    /// # async fn f(files: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// let minute = Duration::from_secs(60);
    /// let read = async || Err(io::Error::from(io::ErrorKind::NotFound));
    /// let error = files.get_or_try_set_with("motd", minute, read).await?.unwrap_err();
    /// assert_eq!(error.kind(), io::ErrorKind::NotFound);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_try_set_with<Q, E, F, Fut>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> impl Future<Output = Result<Result<V, Arc<E>>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let key = encode_key(key);
        async move { self.get_or_load(key?, ttl, loader).await }
    }

    async fn get_or_load<E, F, Fut>(
        &self,
        key: Vec<u8>,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let found = match &self.state.near {
            Some(near) => self.get_near_encoded(near, &key).await?,
            None => {
                let found: Option<Vec<u8>> =
                    self.commands().get(&key).send_idempotent(self.client()).await?;
                self.state.counters.read(&found);
                found.map(|value| self.state.decode(&key, &value)).transpose()?
            }
        };
        match found {
            Some(value) => Ok(Ok(value)),
            // Boxed, so that a hit does not pay for it.
            None => Box::pin(self.load(&key, ttl, loader)).await,
        }
    }

    async fn load<E, F, Fut>(
        &self,
        key: &[u8],
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        loop {
            let mut seat = self.state.flights.join(key);
            if seat.leads() {
                return self.lead(seat, key, ttl, loader).await;
            }
            if seat.is_within() {
                // It would wait for itself.
                drop(seat);
                return Ok(loader().await.map_err(Arc::new));
            }
            if self.commands().keeps_stale()
                && let Some(value) = peek(self.commands(), key).await?
            {
                return Ok(Ok(self.state.decode(key, &value)?));
            }
            match seat.wait().await {
                Told::Leads => return self.lead(seat, key, ttl, loader).await,
                Told::Loaded(value) => return Ok(Ok(self.state.decode(key, &value)?)),
                Told::Refused(error) => return Err(error),
                Told::Failed(error) => {
                    if let Ok(error) = error.downcast() {
                        return Ok(Err(error));
                    }
                }
                Told::Again => {}
            }
        }
    }

    /// Asks the server until there is a value, or the lease is ours.
    async fn lead<E, F, Fut>(
        &self,
        mut seat: Seat,
        key: &[u8],
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let mut lease = Lease::new(self.state.commands.clone(), key.to_vec(), self.state.lease);
        let begin = Instant::now();
        let stale = loop {
            seat.ask();
            match lease.seek().await {
                Err(error) => {
                    seat.refuse(&error);
                    return Err(error);
                }
                Ok(Sought::Live(value)) => {
                    let decoded = self.state.decode(key, &value);
                    seat.land(Ok(value));
                    return Ok(Ok(decoded?));
                }
                Ok(Sought::Leads(stale)) => break stale,
                Ok(Sought::Waits(Some(stale), _)) => {
                    return Ok(Ok(self.state.decode(key, &stale)?));
                }
                Ok(Sought::Waits(None, left)) => {
                    let (first, longest) = PAUSES;
                    sleep((begin.elapsed() / 4).clamp(first, longest).min(left)).await;
                }
            }
        };
        let (format, counters) = (self.state.format, self.state.counters.clone());
        let load = Load { seat, lease, format, counters };
        match stale {
            Some(value) => {
                let value = self.state.decode(key, &value);
                tokio::spawn(async move {
                    if let Ok(Err(_)) | Err(_) = load.run(ttl, loader).await {
                        tracing::warn!("a refresh has failed");
                    }
                });
                Ok(Ok(value?))
            }
            None => load.run(ttl, loader).await,
        }
    }
}

impl Load {
    /// Runs the loader and puts what it returns.
    async fn run<V, E, F, Fut>(
        self,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Result<Result<V, Arc<E>>, Error>
    where
        V: Serialize,
        E: Send + Sync + 'static,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
    {
        let Self { mut seat, lease, format, counters } = self;
        counters.load();
        // Within it as a whole: a closure may do its work before it returns its future.
        let loaded = lease.hold(seat.run(async move { loader().await })).await;
        let value = match loaded {
            Ok(value) => value,
            Err(error) => {
                counters.failed_load();
                let error = Arc::new(error);
                seat.land(Err(error.clone()));
                return Ok(Err(error));
            }
        };
        let bytes = match format.encode(&value) {
            Ok(bytes) => bytes,
            Err(error) => {
                counters.failed_load();
                seat.refuse(&error);
                return Err(error);
            }
        };
        seat.ask();
        match lease.publish(&bytes, Expiry::of(ttl.of(&value))).await {
            Ok(true) => seat.land(Ok(bytes)),
            Ok(false) => seat.ask_again(),
            Err(error) => {
                counters.failed_load();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what was loaded can't be put");
                seat.ask_again();
            }
        }
        Ok(Ok(value))
    }
}
