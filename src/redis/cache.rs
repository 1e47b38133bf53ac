//! Values that leave by themselves, on a server that many processes share.
//!
//! What each verb sends is made in [`commands`]; what comes back is decoded here. With events, the server has a
//! stream of what expired for each shard: [`events`] is what users get of them, `broadcast` and `consumer_group`
//! are the tasks that read them.

mod broadcast;
mod builder;
mod commands;
mod consumer_group;
mod event_record;
mod events;
mod expiry;
mod flights;
mod in_flight_reads;
mod lease;
mod loaders;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod near;
mod near_reads;
mod scan;
mod shard_hints;
mod state;
mod stats;
mod update;

use std::{borrow::Borrow, fmt, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

pub use self::{
    builder::CacheBuilder,
    events::{Events, LosslessEvents},
    stats::CacheStats,
};
use self::{
    commands::Commands,
    expiry::Expiry,
    near::{kept, poll_kept},
    state::CacheState,
};
use super::{Client, Error, codec::encode_key};
use crate::engine::ttl::{Ttl, When};

/// A map of values that know when to leave, on a server that many processes share.
///
/// Verbs and meanings are those of the embedded [`Cache`](crate::Cache), where each answer is a `Result`.
/// A `Cache` is a handle: cheap to clone. All that are made with one name on one server are one cache, in
/// whatever process.
///
/// Keys are written as they are where they are strings, and else as JSON; values in a
/// [`Format`](super::Format), JSON by default. So other programs can read and write them: the value of `ada`
/// in the cache `sessions` is the string `fleeting:cache1:{sessions:2}:ada`, where 2 is the CRC16 of `ada` modulo 16.
/// So that no two keys are one, a string that reads as JSON is written as JSON, too: `"12"` in quotes, `"null"`. What is
/// written with the same name, prefix and type by another release is the same, as long as the digit in `cache1` is.
/// A borrowed form of the key (`&str` for `String`) must be written as the key itself.
///
/// # Time
///
/// Time is the server's, in milliseconds. A value lives no shorter than its TTL and less than a millisecond
/// longer; nothing ever returns a dead one. A TTL of zero is dead at once, one beyond 2<sup>52</sup> ms is
/// for ever.
///
/// # Cost
///
/// Each verb is one round trip and atomic, where nothing else is said. Without
/// [events](CacheBuilder::events) most are the plain command that is named with them; what takes a value out, or gives it
/// less than a minute, is a script of two commands, as it also ends a [load](Cache::get_or_set_with) of the key. With
/// events those that only read are plain commands; each that writes is a script, which takes the server several times as long, and what has a TTL takes memory for
/// an entry of a sorted set and for its value once more. Expired values leave as the server lets them.
///
/// A name has 16 slots of a cluster: so many nodes share its load at most. Who has more of them takes several names.
///
/// # Errors
///
/// Each verb fails with
/// - [`Error::Connect`] and [`Error::Unavailable`] where the server can't be asked within the client's timeout,
/// - [`Error::Unanswered`] where a change was sent and the answer lost; what only reads is sent once more,
/// - [`Error::WrongType`] and [`Error::Decode`] where another program put something else under the key,
/// - [`Error::Encode`] for keys and values that the format can't hold.
///
/// # Cancel safety
///
/// A verb that is dropped before its end may still be carried out by the server.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use fleeting::redis::{Cache, Client};
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let sessions: Cache<String, u64> = Cache::new(&client, "sessions")?;
/// sessions.set_ex("ada".into(), 42, Duration::from_secs(30)).await?;
/// assert_eq!(sessions.get("ada").await?, Some(42));
/// # Ok(())
/// # }
/// ```
pub struct Cache<K, V> {
    state: Arc<CacheState<K, V>>,
}

impl<K, V> Cache<K, V> {
    /// What the handles of this cache in this process have seen. Asks no server.
    pub fn stats(&self) -> CacheStats {
        self.state.counters.snapshot()
    }

    fn commands(&self) -> &Commands {
        &self.state.commands
    }

    fn client(&self) -> &Client {
        &self.state.commands.client
    }

    /// What `set` gives.
    fn default_expiry(&self) -> Expiry {
        self.state.time_to_live.map_or(Expiry::Never, Expiry::of)
    }
}

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// The live value of `key` (Redis: `GET`).
    #[doc(alias = "GET")]
    // By hand, so that what is kept near is written where the caller wants it: each step on the way would copy it.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> impl Future<Output = Result<Option<V>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let mut asking = None;
        poll_fn(move |cx| {
            // The one that is returned, whatever it comes from.
            let mut answer = Poll::Pending;
            let is_kept = match (&asking, &self.state.near) {
                (None, Some(near)) => poll_kept(near, key, cx, &mut answer),
                _ => Poll::Ready(false),
            };
            if is_kept == Poll::Ready(false) {
                let asking = asking.get_or_insert_with(|| Box::pin(self.ask(key)));
                answer = asking.as_mut().poll(cx);
            }
            answer
        })
    }

    /// The live value of `key`, which may live for `ttl` from now: sliding expiry (Redis: `GETEX`).
    #[doc(alias = "GETEX")]
    pub async fn get_ex<Q>(&self, key: &Q, ttl: Duration) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let (key, expiry) = (encode_key(key)?, Expiry::of(ttl));
        let call = self.commands().get_ex(&key, expiry);
        let value = match expiry {
            // Sent again after a lost answer, it would find nothing.
            Expiry::Immediate => call.send_once(self.client()).await?,
            _ => call.send_idempotent(self.client()).await?,
        };
        self.state.counters.read(&value);
        self.decode(&key, value)
    }

    /// Puts `value` at `key` with the default TTL, or without one where none was set; returns the live
    /// value it replaced (Redis: `SET GET`). A TTL that the replaced value had is dropped.
    #[doc(alias = "SET")]
    pub async fn set(&self, key: K, value: V) -> Result<Option<V>, Error> {
        self.put(&key, &value, self.default_expiry()).await
    }

    /// Puts `value` at `key` to live for `ttl`; returns the live value it replaced (Redis: `SET PX GET`).
    #[doc(alias = "SETEX")]
    #[doc(alias = "PSETEX")]
    pub async fn set_ex(&self, key: K, value: V, ttl: Duration) -> Result<Option<V>, Error> {
        self.put(&key, &value, Expiry::of(ttl)).await
    }

    /// Puts `value` at `key` where no live value is, and tells whether it did (Redis: `SET NX PX`).
    ///
    /// Without a `ttl` it gets the default one, as from [`set`](Cache::set).
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Option<Duration>) -> Result<bool, Error> {
        let (key, value) = (encode_key(&key)?, self.encode(&value)?);
        let expiry = ttl.map_or_else(|| self.default_expiry(), Expiry::of);
        self.commands().set_nx(&key, &value, expiry).send_once(self.client()).await
    }

    /// Puts `value` at `key` and leaves the TTL as it is; returns the live value it replaced
    /// (Redis: `SET KEEPTTL GET`).
    ///
    /// Where no live value is, this is [`set`](Cache::set).
    #[doc(alias = "KEEPTTL")]
    pub async fn set_keep_ttl(&self, key: K, value: V) -> Result<Option<V>, Error> {
        let (key, value) = (encode_key(&key)?, self.encode(&value)?);
        let call = self.commands().set_keep_ttl(&key, &value, self.default_expiry());
        let old = call.send_once(self.client()).await?;
        self.decode(&key, old)
    }

    /// Takes the live value of `key` out (Redis: `GETDEL`).
    #[doc(alias = "DEL")]
    #[doc(alias = "GETDEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let value = self.commands().remove(&key).send_once(self.client()).await?;
        self.decode(&key, value)
    }

    /// Whether `key` has a live value.
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        if let Some(near) = &self.state.near
            && let Some(value) = kept(|cx, found| poll_kept(near, key, cx, found)).await?
        {
            return Ok(value.is_some());
        }
        Ok(self.ttl(key).await? != Ttl::Missing)
    }

    /// How long the value of `key` has still to live (Redis: `PTTL`).
    #[doc(alias = "TTL")]
    #[doc(alias = "PTTL")]
    pub async fn ttl<Q>(&self, key: &Q) -> Result<Ttl, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let ttl: i64 =
            self.commands().ttl(&encode_key(key)?).send_idempotent(self.client()).await?;
        Ok(match ttl {
            -2 => Ttl::Missing,
            -1 => Ttl::Persistent,
            // Redis answers 0 in the last millisecond.
            ttl => Ttl::Remaining(Duration::from_millis(ttl.max(1).unsigned_abs())),
        })
    }

    /// Lets the value of `key` live for `ttl` from now; false where no live value is (Redis: `PEXPIRE`).
    /// What is dead stays dead.
    #[doc(alias = "EXPIRE")]
    #[doc(alias = "PEXPIRE")]
    pub async fn expire<Q>(&self, key: &Q, ttl: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let (key, expiry) = (encode_key(key)?, Expiry::of(ttl));
        let call = self.commands().expire(&key, expiry, None);
        match expiry {
            // Sent again after a lost answer, it would find nothing.
            Expiry::Immediate => call.send_once(self.client()).await,
            _ => call.send_idempotent(self.client()).await,
        }
    }

    /// Lets the value of `key` live for `ttl` from now where `when` holds; tells whether it did
    /// (Redis: `PEXPIRE NX|XX|GT|LT`).
    pub async fn expire_if<Q>(&self, key: &Q, ttl: Duration, when: When) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let call = self.commands().expire(&key, Expiry::of(ttl), Some(when));
        call.send_once(self.client()).await
    }

    /// Lets the value of `key` live until `deadline`, dead at once where that is past; false where no live
    /// value is (Redis: `PEXPIRE`).
    ///
    /// An instant means nothing on another machine: what is sent is how far off it is, and the way to the
    /// server comes on top.
    #[doc(alias = "EXPIREAT")]
    #[doc(alias = "PEXPIREAT")]
    pub async fn expire_at<Q>(&self, key: &Q, deadline: Instant) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.expire(key, deadline.saturating_duration_since(Instant::now())).await
    }

    /// Adds `more` to the TTL that the value of `key` has; false where it is missing or persistent.
    pub async fn extend<Q>(&self, key: &Q, more: Duration) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        self.commands().extend(&key, Expiry::of(more)).send_once(self.client()).await
    }

    /// Takes the deadline of the value of `key` away; true where it had one (Redis: `PERSIST`).
    #[doc(alias = "PERSIST")]
    pub async fn persist<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.commands().persist(&encode_key(key)?).send_once(self.client()).await
    }

    /// Ends the expiry of the value of `key` now, with an event whose deadline is now; returns the value.
    ///
    /// Without [events](CacheBuilder::events) it is [`remove`](Cache::remove).
    pub async fn expire_now<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let value = self.commands().expire_now(&key).send_once(self.client()).await?;
        self.decode(&key, value)
    }

    /// The live value of a key that is not kept near.
    async fn ask<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        if let Some(near) = &self.state.near {
            return self.read_near(near, key).await;
        }
        let value = self.commands().get(&key).send_idempotent(self.client()).await?;
        self.state.counters.read(&value);
        self.decode(&key, value)
    }

    async fn put(&self, key: &K, value: &V, expiry: Expiry) -> Result<Option<V>, Error> {
        let (key, value) = (encode_key(key)?, self.encode(value)?);
        let old = self.commands().set(&key, &value, expiry).send_once(self.client()).await?;
        self.decode(&key, old)
    }

    fn encode(&self, value: &V) -> Result<Vec<u8>, Error> {
        self.state.format.encode(value)
    }

    fn decode(&self, key: &[u8], value: Option<Vec<u8>>) -> Result<Option<V>, Error> {
        value.map(|value| self.state.decode(key, &value)).transpose()
    }
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.state.name)
            .field("time_to_live", &self.state.time_to_live)
            .field("events", &self.commands().has_events())
            .finish_non_exhaustive()
    }
}
