//! Cache on a Redis server, shared by all processes that use the same name.
//!
//! [`commands`] builds the command or script of each method; this module sends it and decodes the reply. With events
//! enabled, the server keeps a stream of expirations per shard: [`events`] holds the public subscription types, and
//! `broadcast` and `consumer_group` the tasks that read the streams.

mod broadcast;
mod builder;
mod cache_state;
mod commands;
mod consumer_group;
mod deadlines;
mod event_record;
mod events;
mod expiry;
mod failures;
mod flights;
#[cfg(fleeting_fuzzing)]
pub(super) mod fuzzing;
mod groups;
mod in_flight_reads;
mod lease;
mod load;
mod loaders;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod near;
mod near_reads;
mod refresh_ahead;
mod scan;
mod shard_consumer;
mod shard_hints;
mod stats;
mod stored_value;
mod tags;
mod update;

use std::{borrow::Borrow, fmt, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    builder::CacheBuilder,
    events::{Events, LosslessEvents},
    stats::CacheStats,
};
use self::{
    cache_state::CacheState,
    commands::Commands,
    expiry::Expiry,
    near::{cached, poll_cached},
    stored_value::{TAGGED, stored, tags_of},
};
use super::{Client, Error, Format, codec::encode_key, keyspace::Keyspace};
use crate::engine::ttl::Ttl;

/// A cache on a Redis server, for sessions and loaded values that all your processes share, with a TTL per value.
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
///
/// You use it like the embedded [`Cache`](crate::Cache): it has most of its methods, with the same meanings, but each
/// returns a `Result`. A `Cache` is a handle and cheap to clone. All handles with the same name on the same server are
/// one cache, in any process.
///
/// # Keys and values
///
/// String keys are stored as they are, all other keys as JSON. Values are stored in a [`Format`](super::Format), by
/// default JSON, so that other programs can read and write them. The value of `ada` in your cache `sessions` is the
/// string at `fleeting:cache1:{sessions:2}:ada`, where 2 is the CRC16 of `ada` modulo 16, the number of shards.
///
/// A string that would parse as JSON is stored as JSON, too (`"12"` with its quotes, `"null"`), so that two keys never
/// collide. Another release that uses the same name, prefix and types stores the same bytes, as long as the digit in
/// `cache1` is the same. You may use a borrowed form of the key (`&str` for `String`), which must serialize like the
/// key itself.
///
/// # Time
///
/// The server's clock is used, in milliseconds. A value expires when its TTL has elapsed, or less than a millisecond
/// later. You never get an expired value, except from the loader methods within a [stale
/// window](CacheBuilder::stale_while_revalidate). A value with a TTL of zero expires immediately. A TTL above
/// 2<sup>52</sup> ms makes a value persistent.
///
/// # Cost
///
/// Unless noted otherwise, each method is atomic and takes one round trip.
///
/// Without [events](CacheBuilder::events), most methods send the plain command named in their documentation. Methods
/// that remove a value or give it a TTL of less than a minute send a script of two commands, because they also
/// invalidate a [load](Cache::get_or_set_with) of the key. `ttl`, `set_keep_ttl`, `expire` and `persist` send their
/// command in a script that also checks [tags](Cache::set_tagged). `contains_key` and `set_nx` send such a script after
/// their command, if they find a value with tags.
///
/// With events, methods that only read send the same. Methods that write send a script, which takes the server several
/// times as long. Each value with a TTL also takes the memory of a sorted-set entry and of a second copy
/// of the value. The second copy is deleted when the value is removed or replaced, when its expiration is published, or
/// when the retention has passed.
///
/// A cache has 16 shards, each in its own hash slot, so that at most 16 nodes of a cluster share its load. If your
/// cluster is larger, set another number of [shards](CacheBuilder::shards). A new process reads this number once, by a
/// `GET` together with its first command.
///
/// # Errors
///
/// Each method fails with
/// - [`Error::Connect`] or [`Error::Unavailable`] if the server cannot be reached within the client's timeout,
/// - [`Error::Unanswered`] if a write was sent and the reply was lost (a read is retried once instead),
/// - [`Error::WrongType`] or [`Error::Decode`] if another program stored something else at the key, and the method has
///   to read it; `expire` and `remove` change such a key, and `set` replaces it, as the commands of Redis do,
/// - [`Error::Encode`] if the format cannot represent the key or the value,
/// - [`Error::ShardCount`] if the cache has another number of [shards](CacheBuilder::shards),
/// - [`Error::TooLarge`] if the key or the value is longer than
///   [`max_value_bytes`](super::ClientBuilder::max_value_bytes),
/// - [`Error::Server`] if the server refuses the command, for example because its memory is full.
///
/// # Cancel safety
///
/// If the future of a method is dropped before it completes, the server may still execute the command.
pub struct Cache<K, V> {
    state: Arc<CacheState<K, V>>,
}

impl<K, V> Cache<K, V> {
    /// Returns the counters of all handles of this cache in this process. Sends nothing to the server.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # fn f(users: Cache<u64, String>) {
    /// let stats = users.stats();
    /// println!("{} hits and {} misses since the start of this process", stats.hits, stats.misses);
    /// # }
    /// ```
    pub fn stats(&self) -> CacheStats {
        self.state.counters.snapshot()
    }

    fn commands(&self) -> &Commands {
        &self.state.commands
    }

    fn keyspace(&self) -> &Keyspace {
        &self.commands().keyspace
    }

    fn client(&self) -> &Client {
        &self.state.commands.client
    }

    /// Returns the expiry of a value that is written with `ttl`, or else with the default TTL.
    fn expiry_of(&self, ttl: Option<Duration>) -> Expiry {
        Expiry::of_written(&self.state.freshness, ttl)
    }
}

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Returns the live value of `key` (Redis: `GET`).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// match sessions.get("token").await? {
    ///     Some(user) => println!("user {user}"),
    ///     None => println!("log in, please"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "GET")]
    // A hand-written future: a near hit is written directly into the caller's output slot. With `async fn`, each layer
    // would move the value once more.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> impl Future<Output = Result<Option<V>, Error>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let mut request = None;
        poll_fn(move |cx| {
            // The only variable that is returned, so that the compiler can build the result in place.
            let mut output = Poll::Pending;
            let is_cached = match (&request, &self.state.near) {
                (None, Some(near)) => poll_cached(near, key, cx, &mut output),
                _ => Poll::Ready(false),
            };
            if is_cached == Poll::Ready(false) {
                let request = request.get_or_insert_with(|| Box::pin(self.get_from_server(key)));
                output = request.as_mut().poll(cx);
            }
            output
        })
    }

    /// Returns the live value of `key` and sets its TTL to `ttl`: sliding expiration (Redis: `GETEX`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// // Each request extends its session.
    /// let half_an_hour = Duration::from_secs(1_800);
    /// let user = sessions.get_ex("token", half_an_hour).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "GETEX")]
    pub async fn get_ex<Q>(&self, key: &Q, ttl: Duration) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let (key, expiry) = (encode_key(key)?, Expiry::of(ttl));
        // A late copy would change the TTL of a value that was written after the call.
        let value = self.commands().get_ex(&key, expiry).send_once(self.client()).await?;
        let value = self.commands().live_until(&key, value, expiry).await?;
        self.state.counters.read(&value);
        self.decode(&key, value)
    }

    /// Writes `value` at `key` with the default TTL and returns the live value that it replaced (Redis: `SET GET`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let sessions: Cache<String, u64> = Cache::builder(&client, "sessions")
    ///     .time_to_live(Duration::from_secs(1_800))
    ///     .build()?;
    /// sessions.set("token".into(), 7).await?; // for half an hour, in all processes
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Without a default TTL, the new value is persistent. The TTL of the replaced value is discarded.
    #[doc(alias = "SET")]
    pub async fn set(&self, key: K, value: V) -> Result<Option<V>, Error> {
        self.put(&key, &value, None).await
    }

    /// Writes `value` at `key` with the TTL `ttl` and returns the live value that it replaced (Redis: `SET PX GET`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(codes: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// codes.set_ex("ada".into(), 4711, Duration::from_secs(300)).await?;
    ///
    /// // Within five minutes, in any process; the code is valid once:
    /// assert_eq!(codes.remove("ada").await?, Some(4711));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "SETEX")]
    #[doc(alias = "PSETEX")]
    pub async fn set_ex(&self, key: K, value: V, ttl: Duration) -> Result<Option<V>, Error> {
        self.put(&key, &value, Some(ttl)).await
    }

    /// Writes `value` at `key` if the key has no live value, and returns true if it was written (Redis: `SET NX
    /// PX`).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(locks: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // The process that is first sends the newsletter; the others skip it today.
    /// let day = Some(Duration::from_secs(86_400));
    /// if locks.set_nx("newsletter".into(), "host 1".into(), day).await? {
    ///     println!("sending");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If `ttl` is `None`, the default TTL applies, as for [`set`](Cache::set).
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Option<Duration>) -> Result<bool, Error> {
        let (key, value) = (encode_key(&key)?, self.encode(&value)?);
        let expiry = self.expiry_of(ttl);
        let _discards_failure = self.state.discard_failure(&key);
        // A retry after a lost reply would find its own value and return false.
        if let Some(call) = self.commands().set_nx_get(&key, &value, expiry) {
            match call.send_once::<Option<Vec<u8>>>(self.client()).await {
                Ok(None) => return Ok(true),
                Ok(Some(present)) if tags_of(&present).is_none() => return Ok(false),
                // Nothing was written. The script checks the tags of the value, or ignores its type.
                Ok(Some(_)) | Err(Error::WrongType { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.commands().set_nx(&key, &value, expiry).send_once(self.client()).await
    }

    /// Writes `value` at `key`, keeps the TTL, and returns the live value that it replaced (Redis: `SET KEEPTTL GET`).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, String>) -> Result<(), fleeting::redis::Error> {
    /// // The user changes the language; the session does not last longer for that.
    /// sessions.set_keep_ttl("token".into(), "ada, de".into()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If there is no live value, this is [`set`](Cache::set).
    #[doc(alias = "KEEPTTL")]
    pub async fn set_keep_ttl(&self, key: K, value: V) -> Result<Option<V>, Error> {
        let (key, value) = (encode_key(&key)?, self.encode(&value)?);
        let _discards_failure = self.state.discard_failure(&key);
        let call = self.commands().set_keep_ttl(&key, &value, self.expiry_of(None));
        // A retry after a lost reply would return the new value as the old one.
        let old = call.send_once(self.client()).await?;
        self.decode_replaced(&key, old).await
    }

    /// Removes and returns the live value of `key` (Redis: `GETDEL`).
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// // Log out of all servers.
    /// if let Some(user) = sessions.remove("token").await? {
    ///     println!("user {user} has logged out");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "DEL")]
    #[doc(alias = "GETDEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        let _discards_failure = self.state.discard_failure(&key);
        // A retry after a lost reply would return `None`.
        let value = self.commands().remove(&key).send_once(self.client()).await?;
        self.decode_replaced(&key, value).await
    }

    /// Returns whether `key` has a live value.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(revoked: Cache<String, bool>) -> Result<(), fleeting::redis::Error> {
    /// if revoked.contains_key("token 7").await? {
    ///     println!("this token is not valid any more");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        if let Some(near) = &self.state.near
            && let Some(value) = cached(|cx, found| poll_cached(near, key, cx, found)).await?
        {
            return Ok(value.is_some());
        }
        let beginning = self.commands().beginning(&encode_key(key)?);
        match beginning.send_idempotent::<Vec<u8>>(self.client()).await {
            // No value in another format is empty.
            Ok(beginning) if beginning.is_empty() && self.state.format != Format::Raw => Ok(false),
            Ok(beginning) if !beginning.is_empty() && beginning != TAGGED => Ok(true),
            // A value of another type counts.
            Ok(_) | Err(Error::WrongType { .. }) => Ok(self.ttl(key).await? != Ttl::Missing),
            Err(error) => Err(error),
        }
    }

    /// Asks the server for a key that the near cache did not answer.
    async fn get_from_server<Q>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        Q: Serialize + ?Sized,
    {
        let key = encode_key(key)?;
        if let Some(near) = &self.state.near {
            return Ok(self.read_near(near, key).await?.value);
        }
        self.get_encoded(&key).await
    }

    async fn put(&self, key: &K, value: &V, ttl: Option<Duration>) -> Result<Option<V>, Error> {
        let (key, value) = (encode_key(key)?, self.encode(value)?);
        let expiry = self.expiry_of(ttl);
        let _discards_failure = self.state.discard_failure(&key);
        // A retry after a lost reply would return the new value as the old one.
        let old = self.commands().set(&key, &value, expiry).send_once(self.client()).await?;
        self.decode_replaced(&key, old).await
    }

    fn encode(&self, value: &V) -> Result<Vec<u8>, Error> {
        self.state.format.encode(value).map(stored)
    }

    /// Decodes a value that was replaced or removed, if it was live.
    async fn decode_replaced(&self, key: &[u8], old: Option<Vec<u8>>) -> Result<Option<V>, Error> {
        let old = self.commands().live(key, old).await.map_err(|error| match error {
            // The write itself was executed.
            Error::Connect(cause) | Error::Unavailable(cause) => Error::Unanswered(cause),
            error => error,
        })?;
        self.decode(key, old)
    }

    async fn get_encoded(&self, key: &[u8]) -> Result<Option<V>, Error> {
        let value = self.commands().get_live(key).await?;
        self.state.counters.read(&value);
        self.decode(key, value)
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
            .field("time_to_live", &self.state.freshness.settings.time_to_live)
            .field("events", &self.commands().has_events())
            .finish_non_exhaustive()
    }
}
