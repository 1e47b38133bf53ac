//! The cache: a handle that reads the clock once a call, and flushes the journal after it.
//!
//! All state is below, in the engine. The verbs on values are in this file; deadlines, streams, sweeping, statistics
//! and the end each have one of their own.

mod bounds;
mod builder;
mod calls;
mod compute;
mod deadlines;
mod failures;
mod freshness;
mod freshness_policy;
mod iter;
mod key_futures;
mod load_guard;
mod loaders;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod reentrancy;
mod refresh;
mod shutdown;
#[cfg(feature = "serde")]
mod snapshot;
mod stats;
mod streams;
mod sweeping;
mod tags;
mod weak;

use std::{
    fmt,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::task::consume_budget;

use self::freshness_policy::FreshnessPolicy;
#[cfg(feature = "redis")]
pub(crate) use self::reentrancy::ReentrancyScope;
#[cfg(feature = "serde")]
pub use self::snapshot::SnapshotError;
pub use self::{
    builder::Builder,
    compute::Op,
    freshness::{Freshness, TimeToLive},
    iter::{Iter, Keys, Values},
    stats::Stats,
    weak::WeakCache,
};
use crate::engine::{
    coop, event::Cause, hasher::DefaultHasher, state::SharedState, store::TableCursor,
};

/// How many entries `Debug` shows.
const DEBUG_ENTRIES: usize = 32;

/// A concurrent map whose values know when to leave.
///
/// A `Cache` is a handle: cheap to clone, and all clones are one cache. Values may have a deadline; a
/// value is dead from the instant `now >= deadline`, and from then on no call returns it, whether or not
/// the sweeper has been there. A task on the Tokio runtime sweeps the dead out of memory
/// ([`Sweep`](crate::Sweep)), and each departure can be followed on a stream ([`events`](Cache::events),
/// [`events_lossless`](Cache::events_lossless)).
///
/// Verbs and meanings are those of Redis. Each verb is atomic against all others on the same key.
/// Look-ups take whatever is [`Equivalent`] to the key (`&str` for `String`); those that may keep the key, as loads do,
/// whatever it can be made of ([`ToKey`](crate::ToKey)).
///
/// # Cost
///
/// A verb takes the lock of one shard for about a hundred nanoseconds, and never waits for a subscriber.
/// An awaited call takes part in Tokio's cooperative budget (once in 61 calls), so that a task that only
/// ever hits cannot starve its runtime. That is the only point at which it waits, and it comes before
/// the call does anything: all verbs are cancel safe.
///
/// # Under the lock
///
/// `Hash`, `Eq` and `Clone` of keys and values, and the closures of [`update`](Cache::update) and
/// [`get_ex_with`](Cache::get_ex_with), run while a shard is locked: they must not call the cache.
/// `Drop` of what leaves the cache never does, and may. A panic in any of them
/// unlocks the shard and leaves the cache whole.
///
/// # Runtimes
///
/// A cache keeps the time of the runtime it was built on: Tokio's clock (which tests pause and advance)
/// on a `current_thread` runtime, real time on a `multi_thread` one (which cannot be paused). Handles
/// work from other runtimes and from none; when the runtime of the cache is gone, only the sweeper and
/// [`on_expired`](Cache::on_expired) are.
///
/// So a `static` cache belongs to the runtime of the task that happened to need it first. Under
/// `#[tokio::test]` that is one test's, which ends with it: for all later tests nothing is swept and no callback
/// is called, and where that test had paused its clock, this stands still for ever and no value dies. The
/// [guide](crate::guide::handles#a-static-cache) shows what to do.
///
/// # The end
///
/// With the last handle the values, the sweeper and the streams end. A callback or a value that owns a handle
/// of its own cache keeps it alive for ever: let it own a [`WeakCache`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let cache = Cache::new();
/// cache.set_ex("session", 42, Duration::from_secs(30)).await;
/// assert_eq!(cache.get("session").await, Some(42));
///
/// tokio::time::advance(Duration::from_secs(30)).await;
/// assert_eq!(cache.get("session").await, None);
/// # }
/// ```
pub struct Cache<K, V, S = DefaultHasher> {
    /// One for each handle: the sweeper at work holds the state too, and is none.
    freshness_policy: Arc<FreshnessPolicy<K, S>>,
    shared: Arc<SharedState<K, V, S>>,
}

impl<K, V> Cache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// A cache without a default TTL, with the default [`Sweep`](crate::Sweep).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, as [`Builder::build`].
    #[allow(clippy::new_without_default)] // It panics outside of a runtime: no default.
    pub fn new() -> Self {
        Self::builder().build()
    }
}

impl<K, V> Cache<K, V> {
    /// Sets up a cache.
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
    /// A clone of the live value of `key` (Redis: `GET`).
    #[doc(alias = "GET")]
    // The hottest call: by hand, the future is two words and keeps nothing across a wait.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> impl Future<Output = Option<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        poll_fn(move |cx| {
            ready!(coop::poll_proceed(cx));
            let call = self.call();
            let value = self.shared.store.get(key, &call);
            // The journal is empty after a hit: there the flush, and its look at shared memory, is saved.
            if value.is_none() {
                // It may have been dead.
                self.shared.publisher.flush();
            }
            coop::charge(&call);
            Poll::Ready(value)
        })
    }

    /// Puts `value` at `key` with the default TTL, or without one where none was set; returns the live
    /// value it replaced (Redis: `SET`).
    ///
    /// A TTL that the replaced value had is dropped.
    #[doc(alias = "SET")]
    #[inline]
    pub async fn set(&self, key: K, value: V) -> Option<V> {
        coop::proceed().await;
        let call = self.call();
        let until = self.until(None, &call);
        self.put(key, value, &call, |_| until)
    }

    /// Puts `value` at `key` to live for `ttl`; returns the live value it replaced (Redis: `SETEX`).
    ///
    /// A TTL of zero is dead at once, one that overflows is persistent.
    #[doc(alias = "SETEX")]
    #[inline]
    // An `async fn` would keep its arguments twice, and copy them at each call.
    #[allow(clippy::manual_async_fn)]
    pub fn set_ex(
        &self,
        key: K,
        value: V,
        ttl: Duration,
    ) -> impl Future<Output = Option<V>> + Send {
        async move {
            coop::proceed().await;
            let call = self.call();
            let until = self.until(Some(ttl), &call);
            self.put(key, value, &call, |_| until)
        }
    }

    /// Puts `value` at `key` where no live value is, and tells whether it did (Redis: `SET NX`).
    ///
    /// Without a `ttl` it gets the default one, as from [`set`](Cache::set).
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Option<Duration>) -> bool {
        coop::proceed().await;
        let call = self.call();
        let until = self.until(ttl, &call);
        let failure = self.failure_at(&key);
        let set = self.shared.store.set_nx(key, value, &call, until);
        self.forget_failure(failure.filter(|_| set));
        self.end(&call);
        set
    }

    /// Puts `value` at `key` and leaves the TTL as it is; returns the live value it replaced
    /// (Redis: `SET KEEPTTL`).
    ///
    /// Where no live value is, this is [`set`](Cache::set).
    #[doc(alias = "KEEPTTL")]
    pub async fn set_keep_ttl(&self, key: K, value: V) -> Option<V> {
        coop::proceed().await;
        let call = self.call();
        let fresh = self.until(None, &call);
        self.put(key, value, &call, |kept| kept.unwrap_or(fresh))
    }

    /// Takes the live value of `key` out (Redis: `DEL`).
    #[doc(alias = "DEL")]
    pub async fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.take(key, Cause::Removed)
    }

    /// Whether `key` has a live value (Redis: `EXISTS`). Changes nothing that anybody can see.
    #[doc(alias = "EXISTS")]
    pub async fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let deadline = self.shared.store.deadline(key, &self.shared.clock);
        self.shared.publisher.flush();
        deadline.is_some()
    }

    /// Changes the live value of `key` in place, atomically; its TTL stays. Returns what `change` does,
    /// or `None` where no live value is. No event is sent: nothing left.
    ///
    /// `change` runs while the shard of `key` is locked, and so does the drop of what it overwrites: let it
    /// be short, and don't call the cache in it, or it may wait for itself for ever. Where it panics, the
    /// value stays as it left it. What a weigher says of the new value counts at once; what became heavier than the
    /// whole bound leaves, as [`Cause::Evicted`].
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let visits = Cache::new();
    /// visits.set("home", 1).await;
    /// let after = visits.update("home", |n| { *n += 1; *n }).await;
    /// assert_eq!(after, Some(2));
    /// # }
    /// ```
    pub async fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let call = self.shared.clock.call(true);
        let changed = self.shared.store.change(key, &call, change);
        self.end(&call);
        changed
    }

    /// Resident entries: live, or dead and not yet swept. O(shards).
    pub fn len(&self) -> usize {
        self.shared.store.len()
    }

    /// Whether nothing is resident. O(shards).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Live entries. O(n), a shard at a time.
    pub fn live_len(&self) -> usize {
        self.shared.store.live_len(&self.shared.clock)
    }

    /// Takes everything out, a shard at a time. Live values leave as [`Cause::Removed`], dead ones as
    /// [`Cause::Expired`].
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken out a part.
    #[doc(alias = "FLUSHDB")]
    pub async fn clear(&self) {
        for shard in 0..self.shared.store.shard_count() {
            let mut pass = TableCursor::of(shard);
            loop {
                consume_budget().await;
                let has_more = self.shared.store.clear_windows(&mut pass, &self.shared.clock);
                self.shared.publisher.flush();
                if !has_more {
                    break;
                }
            }
        }
        if let Some(failures) = &self.freshness_policy.failures {
            failures.forget_all().await;
        }
    }
}

impl<K, V, S> Clone for Cache<K, V, S> {
    fn clone(&self) -> Self {
        Self { freshness_policy: self.freshness_policy.clone(), shared: self.shared.clone() }
    }
}

impl<K, V, S> fmt::Debug for Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + fmt::Debug + 'static,
    V: Clone + Send + Sync + fmt::Debug + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// The first live entries, each with its value and the TTL it has left.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache {:?} ", self.shared.name())?;
        let mut entries = self.iter();
        let mut map = f.debug_map();
        for _ in 0..DEBUG_ENTRIES {
            let Some((key, value, deadline)) = entries.next_entry() else { return map.finish() };
            let left = deadline.remaining(self.shared.clock.now());
            match left {
                Some(left) => map.entry(&key, &format_args!("{value:?} (expires in {left:?})")),
                None => map.entry(&key, &value),
            };
        }
        match entries.next_entry() {
            Some(_) => map.finish_non_exhaustive(),
            None => map.finish(),
        }
    }
}
