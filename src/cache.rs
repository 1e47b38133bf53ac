//! In-memory cache: the public handle [`Cache`] and its methods.
//!
//! The handle holds no entries itself: the store, the clock and the event publisher are in `engine`. A call runs one
//! operation of the store and then flushes the journal, so that events are published after the shard is unlocked. This
//! file has the methods that read and write single values. Deadlines, loaders, batches, event streams, sweeping,
//! statistics and shutdown have a file each.

mod bounds;
mod builder;
mod calls;
mod compute;
mod contents;
mod deadlines;
mod foreign_names;
mod freshness_policy;
mod iter;
mod key_futures;
mod load;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod reentrancy;
mod shutdown;
#[cfg(feature = "serde")]
mod snapshot;
mod stats;
mod streams;
mod sweeping;
mod sync_cache;
mod tags;
mod weak;

use std::{
    future::poll_fn,
    hash::{BuildHasher, Hash},
    task::{Poll, ready},
    time::Duration,
};

use equivalent::Equivalent;

pub(crate) use self::freshness_policy::FreshnessPolicy;
#[cfg(feature = "serde")]
pub use self::snapshot::SnapshotError;
pub use self::{
    builder::Builder,
    compute::Op,
    iter::{Iter, Keys, Values},
    load::{Freshness, Tagged, TimeToLive},
    stats::Stats,
    sync_cache::SyncCache,
    weak::WeakCache,
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    freshness_policy::{FreshnessSettings, RefreshErrorHook},
    load::REFRESH_TIMEOUT,
    reentrancy::ReentrancyScope,
};
use crate::engine::{coop, event::Cause, hasher::DefaultHasher};

/// Concurrent in-memory cache for sessions, loaded values and answers, with a TTL per entry, prompt expiration and
/// streams of expiry events.
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// # async fn name_of(_: u64) -> String { "Ada".to_owned() }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let sessions = Cache::new();
/// sessions.set_ex("token", 7, Duration::from_secs(30)).await;
/// assert_eq!(sessions.get("token").await, Some(7));
/// tokio::time::advance(Duration::from_secs(30)).await;
/// assert_eq!(sessions.get("token").await, None);
///
/// // At most 10,000 names; each is loaded once, no matter how many tasks ask for it.
/// let names: Cache<u64, String> = Cache::builder().max_entries(10_000).build();
/// let minute = Duration::from_secs(60);
/// assert_eq!(names.get_or_set_with(&7, minute, async || name_of(7).await).await, "Ada");
/// # }
/// ```
///
/// You share a `Cache` by cloning it: it is a handle, cloning it is cheap, and all clones have the same entries. Most
/// methods correspond to a Redis command and behave like it. The guide has [tables](crate::guide::crossings) of the
/// methods and of what they do to a load of their key, to its kept error, stale value, idle time and tags.
///
/// # Expiration
///
/// An entry may have a deadline. It is expired as soon as `now >= deadline`. From then on you do not get its value from
/// any method, even if it has not been swept. There are two exceptions:
///
/// - the loader methods of a cache with a [stale window](Builder::stale_while_revalidate);
/// - on Linux, lookups while the kernel's coarse clock is more than 50 ms late (because a processor was stopped, for
///   example), until the next sweep at the latest.
///
/// A background task on the Tokio runtime removes expired entries from memory within a delay that you configure
/// ([`Sweep`](crate::Sweep)). You can subscribe to removals by event streams ([`events`](Cache::events),
/// [`events_lossless`](Cache::events_lossless)).
///
/// # Keys
///
/// Operations on the same key are atomic, unless the documentation of a method states otherwise. You can look up an
/// entry by any form of the key that is [`Equivalent`] to it (`&str` for `String`). Methods that may have to store the
/// key, such as the loader methods, accept any form that can be made owned ([`ToKey`](crate::ToKey)).
///
/// # Bounds
///
/// A cache is unbounded by default: it holds every live entry, and entries without a TTL stay until you remove them.
/// Limit it with [`Builder::max_entries`] or [`Builder::max_weight`]; [`Builder::time_to_live`] gives entries a default
/// TTL.
///
/// # Cost
///
/// A call on one key locks its shard for about 100 ns and never waits for a subscriber.
///
/// One in 61 calls consumes a unit of Tokio's cooperative budget, and a call that takes milliseconds makes the next one
/// yield. So a task whose calls are all hits cannot starve its runtime. A call on one key yields only before it has any
/// effect, except in methods that wait for a load, a value or a turn. Methods that process many entries also yield
/// between their steps, as does a write that has to evict more than about a thousand entries. The bound holds when it
/// returns.
///
/// # Cancel safety
///
/// All methods are cancel safe: if a call on one key is dropped before it completes, it has had either its whole effect
/// or none. Methods that process many entries in several steps document what a cancelled call leaves behind. If a write
/// is dropped while it evicts many entries, its value has been written. The cache is then above its bound until the
/// next write or sweep, which evicts the rest.
///
/// # User code under a lock
///
/// `Hash`, `Eq` and `Clone` of keys and values, and the closures of [`update`](Cache::update),
/// [`compute`](Cache::compute), [`get_ex_with`](Cache::get_ex_with), [`remove_if`](Cache::remove_if) and
/// [`retain`](Cache::retain), run while a shard is locked. So does the [weigher](Builder::max_weight) in `update` and
/// `compute`. They must be short and must not call the cache, because the call may deadlock. Removed keys and values
/// are dropped after the lock is released, so their `Drop` may call the cache. The one exception is a value that the
/// closure of `update` overwrites: it is dropped under the lock. A panic in any of them releases the lock and leaves
/// the cache consistent.
///
/// # Runtimes
///
/// A cache uses the clock of the runtime on which you built it. On a `current_thread` runtime this is Tokio's clock,
/// which your tests can pause and advance; on a `multi_thread` runtime it is real time, which cannot be paused. You can
/// use a handle on other runtimes and outside of any runtime. After the runtime of the cache has shut down, reads and
/// writes still work, but the sweeper and the callbacks of [`on_expired`](Cache::on_expired) no longer run.
///
/// Background refreshes run on the runtime of the cache if that is a `multi_thread` runtime that has not shut down, and
/// otherwise on that of the caller. They need a timer (`enable_time`). Without one they have no time limit, and each
/// calls the panic hook, since Tokio offers no other way to learn of it; with `panic = "abort"` the process ends.
///
/// A `static` cache therefore belongs to the runtime of the task that used it first. Build it with
/// [`background_thread`](Builder::background_thread) instead: its tasks then run on a thread of this crate, and it
/// outlives every runtime. In code that is not async, call the methods of [`sync()`](Cache::sync).
///
/// # Lifetime
///
/// When you drop the last handle, the entries are dropped, the sweeper stops and the event streams end. A callback or a
/// value that owns a handle to its own cache keeps the cache alive forever; give it a [`WeakCache`] instead.
pub struct Cache<K, V, S = DefaultHasher> {
    /// Holds the state and does the work. Methods of `Cache` call it, and yield to other tasks.
    inner: SyncCache<K, V, S>,
}

impl<K, V> Cache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an unbounded cache without a default TTL, with the default [`Sweep`](crate::Sweep).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let unbounded = Cache::new();
    /// unbounded.set("ada", 42).await;
    ///
    /// let bounded =
    ///     Cache::builder().max_entries(10_000).time_to_live(Duration::from_secs(60)).build();
    /// bounded.set("ada", 42).await;
    /// # }
    /// ```
    ///
    /// Nothing is ever evicted, and entries written by [`set`](Cache::set) are persistent: they stay until they are
    /// removed or replaced. To bound the cache, build it with [`max_entries`](Builder::max_entries) or
    /// [`max_weight`](Builder::max_weight); to give entries a TTL, use [`set_ex`](Cache::set_ex) or
    /// [`time_to_live`](Builder::time_to_live).
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime and on one without a time driver, as [`Builder::build`] does. With
    /// [`background_thread`](Builder::background_thread) you can build a cache anywhere.
    #[allow(clippy::new_without_default)] // `default()` must not panic, and `new` may.
    pub fn new() -> Self {
        Self::builder().build()
    }
}

impl<K, V> Cache<K, V> {
    /// Returns a [`Builder`] that configures a cache.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Cause, Sweep};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Cache<String, Vec<u8>> = Cache::builder()
    ///     .name("sessions")
    ///     .time_to_live(Duration::from_secs(1_800))
    ///     .sweep(Sweep::default().every(Duration::from_millis(250)))
    ///     .publish([Cause::Expired, Cause::Removed])
    ///     .build();
    /// # drop(cache);
    /// # }
    /// ```
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns a clone of the live value of `key`, or `None` if there is none (Redis: `GET`).
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Cache<String, u64> = Cache::new();
    /// cache.set("ada".to_owned(), 42).await;
    /// assert_eq!(cache.get("ada").await, Some(42));
    /// assert_eq!(cache.get("bob").await, None);
    /// # }
    /// ```
    ///
    /// A hit counts as an access for eviction. In a cache with [`time_to_idle`](Builder::time_to_idle), it restarts the
    /// idle time. The value is cloned under a read lock, so store your large values in an [`Arc`](std::sync::Arc).
    #[doc(alias = "GET")]
    // Written by hand because this is the most frequent call: the future is two words and keeps nothing across an await
    // point.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> impl Future<Output = Option<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        poll_fn(move |cx| {
            ready!(coop::poll_proceed(cx));
            Poll::Ready(self.inner.get_now(key))
        })
    }

    /// Sets the value of `key` with the default TTL, and returns the live value it replaced (Redis: `SET`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let half_an_hour = Duration::from_secs(1_800);
    /// let sessions = Cache::builder().time_to_live(half_an_hour).build();
    /// assert_eq!(sessions.set("token", "ada").await, None);
    /// assert_eq!(sessions.set("token", "bob").await, Some("ada"));
    /// assert_eq!(sessions.get_with_ttl("token").await, Some(("bob", Ttl::Remaining(half_an_hour))));
    /// # }
    /// ```
    ///
    /// The default TTL is [`Builder::time_to_live`]; without one the entry is persistent. The TTL and the tags of the
    /// replaced value are discarded. If the key is being loaded, your value takes precedence over the loaded
    /// one.
    #[doc(alias = "insert")]
    #[doc(alias = "SET")]
    #[inline]
    pub async fn set(&self, key: K, value: V) -> Option<V> {
        coop::proceed().await;
        let replaced = self.inner.set_now(key, value, None);
        // By hand, here and in `set_ex`: the future of `finish` would cost 34 instructions of 520.
        if self.inner.has_deferred_evictions() {
            return self.inner.finish_evictions(replaced).await;
        }
        replaced
    }

    /// Sets the value of `key` with the given TTL, and returns the live value it replaced (Redis: `SETEX`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let codes = Cache::new();
    /// assert_eq!(codes.set_ex("ada", 4711, Duration::from_secs(30)).await, None);
    /// assert_eq!(codes.set_ex("ada", 4712, Duration::from_secs(30)).await, Some(4711));
    /// # }
    /// ```
    ///
    /// With a TTL of zero the entry expires immediately; with one that overflows it is persistent. A TTL of five
    /// seconds or more is counted from the last tick of the kernel's coarse clock, like a default TTL of that length:
    /// the value never lives longer, and expires at most some milliseconds early (50 if the machine is late).
    #[doc(alias = "expire_after")]
    #[doc(alias = "expire_after_create")]
    #[doc(alias = "Expiry")]
    #[doc(alias = "SETEX")]
    #[inline]
    // An `async fn` would store its arguments twice, as arguments and as locals, and copy them in each call.
    #[allow(clippy::manual_async_fn)]
    pub fn set_ex(
        &self,
        key: K,
        value: V,
        ttl: Duration,
    ) -> impl Future<Output = Option<V>> + Send {
        async move {
            coop::proceed().await;
            let replaced = self.inner.set_now(key, value, Some(ttl));
            if self.inner.has_deferred_evictions() {
                return self.inner.finish_evictions(replaced).await;
            }
            replaced
        }
    }

    /// Sets the value of `key` only if it has no live value, and returns true if it was set (Redis: `SET NX`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let locks = Cache::new();
    /// let lease = Some(Duration::from_secs(10));
    /// assert!(locks.set_nx("job", "worker 1", lease).await);
    /// assert!(!locks.set_nx("job", "worker 2", lease).await);
    /// # }
    /// ```
    ///
    /// A `ttl` of `None` means the default TTL, as for [`set`](Cache::set). If the key has a live value, `value` is
    /// dropped.
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Option<Duration>) -> bool {
        coop::proceed().await;
        let set = self.inner.set_nx_now(key, value, ttl);
        self.inner.finish(set).await
    }

    /// Sets the value of `key` without changing its TTL, and returns the live value it replaced (Redis: `SET KEEPTTL`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A login code is valid for five minutes; a failed attempt is noted in its entry.
    /// let codes = Cache::new();
    /// codes.set_ex("ada", (4711, "no attempt"), Duration::from_secs(300)).await;
    /// tokio::time::advance(Duration::from_secs(100)).await;
    /// codes.set_keep_ttl("ada", (4711, "one attempt")).await;
    /// assert_eq!(codes.ttl("ada").await, Ttl::Remaining(Duration::from_secs(200)));
    /// # }
    /// ```
    ///
    /// If there is no live value, this is [`set`](Cache::set). Tags are not kept.
    #[doc(alias = "KEEPTTL")]
    pub async fn set_keep_ttl(&self, key: K, value: V) -> Option<V> {
        coop::proceed().await;
        let replaced = self.inner.set_keep_ttl_now(key, value);
        self.inner.finish(replaced).await
    }

    /// Removes `key` and returns its live value, or `None` if there was none (Redis: `DEL`).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set("token", "ada").await;
    ///
    /// // Ada logs out.
    /// assert_eq!(sessions.remove("token").await, Some("ada"));
    /// assert_eq!(sessions.get("token").await, None);
    /// # }
    /// ```
    ///
    /// The cause of the removal is [`Cause::Removed`].
    #[doc(alias = "invalidate")]
    #[doc(alias = "DEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.remove_as(key, Cause::Removed)
    }

    /// Returns whether `key` has a live value (Redis: `EXISTS`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let revoked = Cache::new();
    /// revoked.set_ex("token 7", (), Duration::from_secs(3_600)).await;
    /// assert!(revoked.contains_key("token 7").await);
    /// assert!(!revoked.contains_key("token 8").await);
    /// # }
    /// ```
    ///
    /// This is not an access: it does not extend an idle deadline, and counts neither for eviction nor in [`Stats`].
    #[doc(alias = "contains")]
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.inner.contains_key(key)
    }
}

impl<K, V, S> Clone for Cache<K, V, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}
